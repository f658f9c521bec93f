//! A cpio archive in the form that the kernel unpacks as its first file system ("newc", initramfs buffer format).

use std::collections::BTreeSet;
use std::path::{Component, Path};

/// An archive that grows entry by entry.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

impl Archive {
    /// A folder, and those above it.
    pub(crate) fn folder(&mut self, path: &str) {
        let mut name = String::new();
        for part in Path::new(path).components() {
            if let Component::Normal(part) = part {
                name = if name.is_empty() { String::new() } else { name + "/" } + &part.to_string_lossy();
                self.entry(&name, FOLDER, &[]);
            }
        }
    }

    /// A file, unless there is one of this name, and the folders above it.
    pub(crate) fn file(&mut self, path: &str, content: &[u8], executable: bool) {
        self.add(path, if executable { PROGRAM } else { FILE }, content);
    }

    /// A symbolic link to `target`.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.add(path, LINK, target.as_bytes());
    }

    /// Whether there is an entry of this name.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.names.contains(path.trim_start_matches('/'))
    }

    /// The finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn add(&mut self, path: &str, mode: u32, content: &[u8]) {
        if let Some(parent) = Path::new(path).parent() {
            self.folder(&parent.to_string_lossy());
        }
        self.entry(path.trim_start_matches('/'), mode, content);
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        if !self.names.insert(name.to_owned()) {
            return;
        }
        // Inode, mode, owner, group, links, time, size, device (2), special device (2), length of the name, checksum.
        let inode = self.names.len();
        let (size, length) = (content.len(), name.len() + 1);
        let fields = [inode, mode as usize, 0, 0, 1, 0, size, 0, 0, 0, 0, length, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    /// Header with name, and content, each fill a multiple of four bytes.
    fn pad(&mut self) {
        let length = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(length, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_header_a_name_and_a_content_each_filled_to_four_bytes() {
        let mut archive = Archive::default();
        archive.file("/bin/x", b"hello", true);
        archive.file("bin/x", b"another", true);
        assert!(archive.has("/bin/x") && archive.has("bin") && !archive.has("/bin/y"));
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(bytes.len() % 4, 0);
        assert!(text.starts_with("07070100000001000041ED"), "{text}");
        // 110 bytes of header and `bin\0`, with two of filling.
        assert_eq!(&text[116..138], "07070100000002000081ED");
        assert_eq!(&bytes[116 + 110..116 + 110 + 6], b"bin/x\0");
        assert_eq!(&bytes[116 + 116..116 + 116 + 8], b"hello\0\0\0");
        assert_eq!(text.matches("070701").count(), 3);
    }
}
