//! As much of ELF as tells for which processor a program is, and whether it needs a loader.

use anyhow::{Context, Result, ensure};

/// `PT_INTERP`: the program names a loader.
const INTERPRETER: u32 = 3;

/// What a program's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Elf {
    /// `e_machine`.
    pub(crate) machine: u16,
    /// Whether it runs without a loader and libraries.
    pub(crate) is_static: bool,
}

impl Elf {
    /// Reads the header of a 64-bit little-endian program.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        ensure!(
            bytes.starts_with(b"\x7fELF\x02\x01"),
            "not a 64-bit little-endian ELF program"
        );
        let table = usize::try_from(u64::from_le_bytes(at(bytes, 32)?))?;
        let size = usize::from(u16::from_le_bytes(at(bytes, 54)?));
        let count = usize::from(u16::from_le_bytes(at(bytes, 56)?));
        let mut is_static = true;
        for number in 0..count {
            let offset = number
                .checked_mul(size)
                .and_then(|offset| offset.checked_add(table));
            let kind = u32::from_le_bytes(at(bytes, offset.context("an offset out of range")?)?);
            is_static &= kind != INTERPRETER;
        }
        Ok(Self {
            machine: u16::from_le_bytes(at(bytes, 18)?),
            is_static,
        })
    }
}

fn at<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N]> {
    let end = offset.checked_add(N).context("an offset out of range")?;
    let part = bytes.get(offset..end).context("the program is cut short")?;
    Ok(part.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header and program headers of these types.
    fn program(machine: u16, types: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&u16::try_from(types.len()).unwrap().to_le_bytes());
        for kind in types {
            bytes.extend(kind.to_le_bytes());
            bytes.extend([0; 52]);
        }
        bytes
    }

    #[test]
    fn a_program_with_a_loader_is_not_static() {
        let (static_, dynamic) = (program(62, &[1, 2]), program(183, &[1, 3]));
        let elf = |machine, is_static| Elf { machine, is_static };
        assert_eq!(Elf::read(&static_).unwrap(), elf(62, true));
        assert_eq!(Elf::read(&dynamic).unwrap(), elf(183, false));
    }

    #[test]
    fn this_test_is_read_as_a_program_of_this_machine() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let host = crate::arch::Arch::host().unwrap();
        assert_eq!(Elf::read(&bytes).unwrap().machine, host.elf_machine());
    }

    #[test]
    fn what_is_no_program_or_is_cut_short_is_refused() {
        assert!(Elf::read(b"#!/bin/sh\n").is_err());
        let whole = program(62, &[1, 3]);
        for length in 0..whole.len() - 52 {
            assert!(Elf::read(&whole[..length]).is_err(), "{length}");
        }
    }
}
