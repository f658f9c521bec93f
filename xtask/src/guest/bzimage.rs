//! The kernel inside a kernel's file. Booted as it is, it spares an emulated machine the unpacking: three of eight seconds.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::process;

/// What a file of the x86 boot protocol says of itself (`Documentation/arch/x86/boot.rst`): place and length of a field.
const MAGIC: usize = 0x202;
const SETUP_SECTORS: usize = 0x1f1;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR: usize = 512;
/// After the compressed kernel stands how long it is unpacked.
const SIZE: usize = 4;

/// Compressions that Debian's kernels have: how it begins, the program that unpacks it.
const COMPRESSIONS: [(&[u8], &str); 3] = [
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
    (&[0x02, 0x21, 0x4c, 0x18], "lz4"),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz"),
];

/// Unpacks the kernel in the file `packed` to `place`, by way of a file beside it.
pub(super) fn unpack(packed: &Path, place: &Path) -> Result<()> {
    let bytes = fs::read(packed).with_context(|| format!("cannot read {}", packed.display()))?;
    let (payload, size) = payload(&bytes).with_context(|| format!("{} is no kernel", packed.display()))?;
    let compression = COMPRESSIONS.iter().find(|(magic, _)| payload.starts_with(magic));
    let Some((_, program)) = compression else {
        bail!("{} is compressed by none of zstd, lz4 and xz", packed.display());
    };
    let compressed = place.with_extension("compressed");
    fs::write(&compressed, payload).with_context(|| format!("cannot write {}", compressed.display()))?;
    let unpacked = process::output(Command::new(program).args(["-d", "-c"]).arg(&compressed))?;
    fs::remove_file(&compressed).with_context(|| format!("cannot remove {}", compressed.display()))?;
    ensure!(unpacked.len() == size, "{} has a kernel of {} bytes, not {size}", packed.display(), unpacked.len());
    fs::write(place, unpacked).with_context(|| format!("cannot write {}", place.display()))
}

/// The compressed kernel, and how long it is unpacked.
fn payload(file: &[u8]) -> Result<(&[u8], usize)> {
    ensure!(file.get(MAGIC..MAGIC + 4) == Some(b"HdrS"), "it has no header of the x86 boot protocol");
    let number = |at: usize| -> Result<usize> {
        let bytes = file.get(at..at + 4).context("it ends too early")?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
    };
    // None stands for four, as in the oldest files.
    let sectors = match file[SETUP_SECTORS] {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * SECTOR + number(PAYLOAD_OFFSET)?;
    let end = (start + number(PAYLOAD_LENGTH)?).checked_sub(SIZE).filter(|end| *end >= start);
    let end = end.context("it has no compressed kernel")?;
    let payload = file.get(start..end).context("it ends too early")?;
    Ok((payload, number(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(length: u32) -> Vec<u8> {
        let mut file = vec![0; 2 * SECTOR];
        file[SETUP_SECTORS] = 1;
        file[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        file[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&2_u32.to_le_bytes());
        file[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        file.extend(b"..kernel");
        file.extend(1000_u32.to_le_bytes());
        file
    }

    #[test]
    fn the_payload_is_found_by_the_header() {
        assert_eq!(payload(&file(10)).unwrap(), (&b"kernel"[..], 1000));
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        assert!(payload(b"ELF").is_err());
        assert_eq!(payload(&file(3)).unwrap_err().to_string(), "it has no compressed kernel");
        assert_eq!(payload(&file(11)).unwrap_err().to_string(), "it ends too early");
    }
}
