//! What this kernel and this process must be able to do, asked before anything is changed.

use std::path::{Path, PathBuf};

use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported};
use nix::sys::statfs::{BPF_FS_MAGIC, CGROUP2_SUPER_MAGIC, statfs};

use super::attach::tcx;
use super::namespace;
use super::sock_diag;

/// The oldest kernel that bpvs runs on.
pub const MINIMUM_KERNEL: (u32, u32) = (6, 1);

/// What was asked of the kernel, and its answer.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Probe {
    /// The feature.
    pub feature: &'static str,
    /// The first kernel that has it, or what else it comes from.
    pub since: &'static str,
    /// Whether it is there.
    pub status: Status,
    /// What was found, or what to do.
    pub detail: String,
}

/// Whether a feature is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// There.
    Ok,
    /// Not there, and bpvs does not run without.
    Missing,
    /// Not there, and bpvs does without.
    Absent,
    /// Not to be asked by this process.
    Unknown,
}

impl Status {
    /// Its name in listings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Missing => "missing",
            Self::Absent => "absent",
            Self::Unknown => "unknown",
        }
    }

    const fn of(available: bool, required: bool) -> Self {
        match (available, required) {
            (true, _) => Self::Ok,
            (false, true) => Self::Missing,
            (false, false) => Self::Absent,
        }
    }
}

/// Where to look.
#[derive(Clone, Debug)]
pub struct Places {
    /// The pin directory.
    pub pin_path: PathBuf,
    /// The cgroup of the socket programs, if it was given.
    pub cgroup: Option<PathBuf>,
    /// Whether socket programs are wanted at all.
    pub sockets: bool,
}

/// Asks everything, cheapest first.
pub fn probe(places: &Places) -> Vec<Probe> {
    let privileges = privileges();
    let may_ask = privileges.status == Status::Ok;
    let ask = |probe: Probe| if may_ask { probe } else { unknown(probe) };
    vec![
        privileges,
        kernel_version(),
        bpf_file_system(&places.pin_path),
        ask(btf()),
        ask(bpf_loop()),
        ask(tc_hook()),
        cgroup(places),
        namespace_cookie(places.sockets),
        ask(ending_of_sockets()),
    ]
}

/// What a process without privileges was told means nothing.
fn unknown(probe: Probe) -> Probe {
    Probe { status: Status::Unknown, detail: "cannot be asked without the privileges above".to_owned(), ..probe }
}

/// The error that names every required feature that is missing.
pub fn missing(probes: &[Probe]) -> Option<String> {
    let missing: Vec<String> = probes
        .iter()
        .filter(|probe| probe.status == Status::Missing)
        .map(|probe| format!("{} ({}): {}", probe.feature, probe.since, probe.detail))
        .collect();
    (!missing.is_empty()).then(|| format!("missing on this node: {}", missing.join("; ")))
}

/// Capabilities by number, with those that imply them.
const CAPABILITIES: [(&str, u32, Option<u32>); 3] =
    [("CAP_NET_ADMIN", 12, None), ("CAP_BPF", 39, Some(CAP_SYS_ADMIN)), ("CAP_PERFMON", 38, Some(CAP_SYS_ADMIN))];
const CAP_SYS_ADMIN: u32 = 21;

fn privileges() -> Probe {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let missing = missing_capabilities(&status);
    let detail = if missing.is_empty() {
        "present".to_owned()
    } else {
        format!(
            "{} missing: run as root, or give the process these capabilities (or CAP_SYS_ADMIN for the last two)",
            missing.join(", ")
        )
    };
    Probe {
        feature: "privileges",
        since: "CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON",
        status: Status::of(missing.is_empty(), true),
        detail,
    }
}

fn missing_capabilities(status: &str) -> Vec<&'static str> {
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    let has = |bit: u32| effective & (1 << bit) != 0;
    CAPABILITIES
        .into_iter()
        .filter(|(_, bit, implied_by)| !has(*bit) && !implied_by.is_some_and(has))
        .map(|(name, ..)| name)
        .collect()
}

fn kernel_version() -> Probe {
    let release = nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned());
    let release = release.unwrap_or_default();
    let available = parse_release(&release).is_some_and(|version| version >= MINIMUM_KERNEL);
    let detail = if available { release } else { format!("this is Linux {release}: upgrade the kernel") };
    Probe { feature: "kernel", since: "Linux 6.1", status: Status::of(available, true), detail }
}

fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn bpf_file_system(pin_path: &Path) -> Probe {
    let existing = pin_path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let available = statfs(existing).is_ok_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC);
    let detail = if available {
        format!("{} is on one", pin_path.display())
    } else {
        format!(
            "{} is on none: run `mount -t bpf bpf /sys/fs/bpf`, or give a --pin-path on a mounted one (`ip netns exec` \
             hides it, `nsenter --net=` does not)",
            pin_path.display()
        )
    };
    Probe { feature: "BPF file system", since: "Linux 4.4", status: Status::of(available, true), detail }
}

fn btf() -> Probe {
    let available = aya::features().btf().is_some();
    let detail = if available {
        "map and program types are described"
    } else {
        "the kernel refuses BTF: build it with CONFIG_DEBUG_INFO_BTF"
    };
    Probe { feature: "BTF", since: "Linux 4.18", status: Status::of(available, true), detail: detail.to_owned() }
}

fn bpf_loop() -> Probe {
    let answer = is_helper_supported(ProgramType::SchedClassifier, BpfHelper::BPF_FUNC_loop);
    let available = matches!(answer, Ok(true));
    let detail = match answer {
        Ok(true) => "present".to_owned(),
        Ok(false) => "the kernel lacks the helper: upgrade it".to_owned(),
        Err(error) => format!("cannot be probed: {error}"),
    };
    Probe { feature: "bpf_loop", since: "Linux 5.17", status: Status::of(available, true), detail }
}

fn tc_hook() -> Probe {
    let tcx = tcx::is_supported();
    let detail = if tcx { "present" } else { "absent: clsact filters are used instead" };
    Probe { feature: "TCX", since: "Linux 6.6", status: Status::of(tcx, false), detail: detail.to_owned() }
}

fn cgroup(places: &Places) -> Probe {
    let found = places.cgroup.clone().or_else(find_cgroup2);
    let on_cgroup2 = |path: &PathBuf| statfs(path).is_ok_and(|stat| stat.filesystem_type() == CGROUP2_SUPER_MAGIC);
    let available = found.as_ref().is_some_and(on_cgroup2);
    let detail = match found {
        Some(path) if available => path.display().to_string(),
        Some(path) => format!("{} is no cgroup v2: give another --cgroup, or --socket-lb off", path.display()),
        None => "none is mounted: run `mount -t cgroup2 cgroup2 /sys/fs/cgroup`, or give --socket-lb off".to_owned(),
    };
    Probe { feature: "cgroup v2", since: "Linux 4.10", status: Status::of(available, places.sockets), detail }
}

fn namespace_cookie(required: bool) -> Probe {
    let answer = namespace::network_namespace_cookie();
    let available = answer.is_ok();
    let detail = match answer {
        Ok(cookie) => format!("this namespace has {cookie}"),
        Err(error) => format!("{error}: upgrade the kernel, or give --socket-lb off"),
    };
    Probe { feature: "network namespace cookies", since: "Linux 5.14", status: Status::of(available, required), detail }
}

fn ending_of_sockets() -> Probe {
    let answer = sock_diag::probe();
    let available = answer.is_ok();
    let detail = match answer {
        Ok(()) => "present".to_owned(),
        Err(error) => format!(
            "{error}: connected UDP sockets of the node stay with a server that is gone until they connect anew; build the \
             kernel with CONFIG_INET_DIAG_DESTROY and CONFIG_INET_UDP_DIAG"
        ),
    };
    Probe { feature: "ending of UDP sockets", since: "Linux 4.9", status: Status::of(available, false), detail }
}

/// Where a cgroup v2 hierarchy is mounted, if one is.
pub fn find_cgroup2() -> Option<PathBuf> {
    cgroup2_mount(&std::fs::read_to_string("/proc/mounts").ok()?)
}

fn cgroup2_mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, path, kind) = (fields.next()?, fields.next()?, fields.next()?);
        // The kernel writes blanks in paths as \040.
        (kind == "cgroup2").then(|| PathBuf::from(path.replace("\\040", " ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_privileges_are_named() {
        assert!(missing_capabilities("CapEff:\t000001ffffffffff\n").is_empty());
        assert!(missing_capabilities("CapEff:\t0000000000201000\n").is_empty());
        assert_eq!(missing_capabilities("CapEff:\t0000000000001000\n"), ["CAP_BPF", "CAP_PERFMON"]);
        assert_eq!(missing_capabilities(""), ["CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON"]);
    }

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(parse_release("6.18.44-fc-v657"), Some((6, 18)));
        assert!(parse_release("6.1.0-13-amd64").unwrap() >= MINIMUM_KERNEL);
        assert!(parse_release("5.15.0").unwrap() < MINIMUM_KERNEL);
        assert_eq!(parse_release("six"), None);
    }

    #[test]
    fn the_cgroup2_mount_is_found_among_others() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw 0 0\n\
                      cgroup2 /sys/fs/cgroup/uni\\040fied cgroup2 rw 0 0\n";
        assert_eq!(cgroup2_mount(mounts), Some(PathBuf::from("/sys/fs/cgroup/uni fied")));
        assert_eq!(cgroup2_mount("proc /proc proc rw 0 0"), None);
    }

    #[test]
    fn the_error_names_every_missing_feature_with_its_kernel() {
        let probe = |feature, required, available| Probe {
            feature,
            since: "Linux 9.9",
            status: Status::of(available, required),
            detail: "why".into(),
        };
        let probes =
            [probe("a", true, false), probe("b", true, true), probe("c", false, false), probe("d", true, false)];
        assert_eq!(missing(&probes).unwrap(), "missing on this node: a (Linux 9.9): why; d (Linux 9.9): why");
        assert_eq!(missing(&probes[1..3]), None);
    }
}
