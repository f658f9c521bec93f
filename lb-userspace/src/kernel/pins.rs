//! Names in the pin directory: `<root>/<map>` and `<root>/links/<link>`.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::attach::Direction;

/// Where the maps and links of one agent are pinned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pins {
    root: PathBuf,
}

/// The name of a pinned link.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LinkName {
    /// A tc program on an interface: `<index>-<name>-<ingress|egress>`.
    Interface {
        /// Interface index when it was attached.
        index: u32,
        /// Interface name at that time.
        name: String,
        /// Which of its two hooks.
        direction: Direction,
    },
    /// The XDP program on an uplink: `<index>-<name>-xdp`.
    Uplink {
        /// Interface index when it was attached.
        index: u32,
        /// Interface name at that time.
        name: String,
    },
    /// A program on the cgroup: `cgroup-<program>`.
    Cgroup {
        /// The program's name.
        program: String,
    },
}

impl LinkName {
    /// The name of its file. A BPF file system refuses dots, which interface names may hold; colons they may not.
    pub fn file_name(&self) -> String {
        match self {
            Self::Interface { index, name, direction } => {
                format!("{index}-{}-{}", name.replace('.', ":"), direction.name())
            }
            Self::Uplink { index, name } => format!("{index}-{}-{XDP}", name.replace('.', ":")),
            Self::Cgroup { program } => format!("cgroup-{program}"),
        }
    }

    /// The link that a file is, if the name is one of ours.
    pub fn parse(file_name: &str) -> Option<Self> {
        if let Some(program) = file_name.strip_prefix("cgroup-bpvs_") {
            return Some(Self::Cgroup { program: format!("bpvs_{program}") });
        }
        let (index, rest) = file_name.split_once('-')?;
        let (name, hook) = rest.rsplit_once('-')?;
        let (index, name) = (index.parse().ok()?, name.replace(':', "."));
        if hook == XDP {
            return Some(Self::Uplink { index, name });
        }
        let direction = Direction::ALL.into_iter().find(|known| known.name() == hook)?;
        Some(Self::Interface { index, name, direction })
    }

    /// Index and name of the interface that the link is on, if it is on one.
    pub fn interface(&self) -> Option<(u32, &str)> {
        match self {
            Self::Interface { index, name, .. } | Self::Uplink { index, name } => Some((*index, name)),
            Self::Cgroup { .. } => None,
        }
    }

    /// The same link after its interface was renamed.
    pub fn renamed(&self, to: &str) -> Self {
        let mut renamed = self.clone();
        if let Self::Interface { name, .. } | Self::Uplink { name, .. } = &mut renamed {
            to.clone_into(name);
        }
        renamed
    }
}

/// The hook's name in pins.
const XDP: &str = "xdp";

impl Pins {
    /// Pins under a directory, which need not exist.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where a map is pinned.
    pub fn map(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The directory of links.
    pub fn links(&self) -> PathBuf {
        self.root.join("links")
    }

    /// Where a link is pinned.
    pub fn link(&self, name: &LinkName) -> PathBuf {
        self.links().join(name.file_name())
    }

    /// Makes the directories, readable by their owner only: whoever can open the maps can change them.
    pub fn create(&self) -> Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(self.links()).with_context(|| {
            format!(
                "cannot create {}: the parent must be on a BPF file system that this user may write",
                self.links().display()
            )
        })
    }

    /// The names of pinned maps (and of whatever else is beside them), sorted; empty when there is no directory.
    pub fn map_names(&self) -> io::Result<Vec<String>> {
        Ok(names(&self.root)?.into_iter().filter(|name| name != "links").collect())
    }

    /// The names of files among the links, sorted; empty when there is no directory.
    pub fn link_file_names(&self) -> io::Result<Vec<String>> {
        names(&self.links())
    }

    /// The pinned links whose names are ours.
    pub fn link_names(&self) -> io::Result<Vec<LinkName>> {
        Ok(self.link_file_names()?.iter().filter_map(|name| LinkName::parse(name)).collect())
    }
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names =
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_names_lead_back_to_the_link() {
        for name in ["eth0", "eth0.100", "br-lan", "veth-a-ingress", "1-2"] {
            for direction in Direction::ALL {
                let link = LinkName::Interface { index: 7, name: name.into(), direction };
                assert!(!link.file_name().contains('.'));
                assert_eq!(LinkName::parse(&link.file_name()), Some(link));
            }
            let link = LinkName::Uplink { index: 7, name: name.into() };
            assert!(!link.file_name().contains('.'));
            assert_eq!(LinkName::parse(&link.file_name()), Some(link));
        }
        let link = LinkName::Cgroup { program: "bpvs_connect4".into() };
        assert_eq!(LinkName::parse(&link.file_name()), Some(link));
    }

    #[test]
    fn names_of_others_are_not_taken_for_ours() {
        for name in ["", "links", "eth0-ingress", "x-eth0-ingress", "1-eth0-forward", "cgroup-cilium_connect4"] {
            assert_eq!(LinkName::parse(name), None, "{name}");
        }
    }
}
