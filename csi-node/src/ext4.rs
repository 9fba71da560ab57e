//! ext4's superblock: how much of its device a file system has, and whether it knows of errors in itself.
//!
//! Pure: it reads bytes. Offsets and units are those of kernel `Documentation/filesystems/ext4/super.rst`.

use pve_model::size::Bytes;

/// Where the superblock lies on its device, in bytes.
const OFFSET: usize = 1024;
const MAGIC: u16 = 0xef53;
/// `s_state`: the kernel has found errors. A check clears it.
const HAS_ERRORS: u16 = 2;
/// `s_feature_incompat`: block numbers have 64 bits.
const IS_64BIT: u32 = 0x80;
/// Bitmaps of a group and its copy of the superblock.
const FIXED_OVERHEAD: u64 = 3;
/// What e2fsprogs wants to gain by a last group at least, in blocks (`resize/resize2fs.c`, `lib/ext2fs/initialize.c`).
const LEAST_GAIN: u64 = 50;

/// What a superblock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    block_size: u64,
    blocks: u64,
    /// The first group begins here.
    first_block: u64,
    /// Length of a group.
    group: u64,
    /// At least as many blocks as a group needs for itself.
    group_overhead: u64,
    has_errors: bool,
}

// === impl Superblock ===

impl Superblock {
    /// Reads the beginning of a device; none if there is no superblock in it.
    pub fn parse(head: &[u8]) -> Option<Self> {
        let fields = Fields(head.get(OFFSET..)?);
        if fields.half(0x38)? != MAGIC {
            return None;
        }
        let shift = fields.word(0x18)?;
        let block_size = 1024_u64.checked_shl(shift).filter(|_| shift <= 6)?;
        let wide = fields.word(0x60)? & IS_64BIT != 0;
        let high = if wide { fields.word(0x150)? } else { 0 };
        let inode_table = u64::from(fields.word(0x28)?) * u64::from(fields.half(0x58)?);
        let blocks = u64::from(high) << 32 | u64::from(fields.word(0x4)?);
        let group = u64::from(fields.word(0x20)?).max(1);
        let groups = blocks.div_ceil(group);
        let descriptor = if wide {
            u64::from(fields.half(0xfe)?)
        } else {
            32
        };
        Some(Self {
            block_size,
            blocks,
            first_block: u64::from(fields.word(0x14)?),
            group,
            group_overhead: inode_table.div_ceil(block_size)
                + groups.saturating_mul(descriptor).div_ceil(block_size)
                + u64::from(fields.half(0xce)?)
                + FIXED_OVERHEAD,
            has_errors: fields.half(0x3a)? & HAS_ERRORS != 0,
        })
    }

    /// Length of the file system.
    pub fn size(&self) -> Bytes {
        Bytes::new(self.blocks.saturating_mul(self.block_size))
    }

    /// Whether growing would gain nothing: a rest that is smaller than a block, or too small for one more group, stays
    /// unused.
    pub fn fills(&self, device: Bytes) -> bool {
        let blocks = device.get() / self.block_size;
        let last_group = blocks.saturating_sub(self.first_block) % self.group;
        let unused = if last_group < self.group_overhead + LEAST_GAIN {
            last_group
        } else {
            0
        };
        self.blocks >= blocks - unused
    }

    /// Whether errors have been found in it since its last check.
    pub fn has_errors(&self) -> bool {
        self.has_errors
    }
}

/// Little-endian fields.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn half(&self, at: usize) -> Option<u16> {
        let bytes = self.0.get(at..at + 2)?.try_into().ok()?;
        Some(u16::from_le_bytes(bytes))
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The beginning of a device with a file system of `size`, as `mkfs.ext4` makes it on 1 GiB: blocks of 4 KiB, 8192
    /// inodes of 256 bytes in a group, 127 blocks for descriptors to come.
    pub(crate) fn head(size: Bytes, state: u16) -> Vec<u8> {
        let mut head = vec![0; 4096];
        let mut put = |at: usize, bytes: &[u8]| {
            head[OFFSET + at..OFFSET + at + bytes.len()].copy_from_slice(bytes);
        };
        let blocks = size.get() / 4096;
        let bytes = blocks.to_le_bytes();
        let (low, high) = bytes.split_at(4);
        put(0x4, low);
        put(0x150, high);
        put(0x18, &2_u32.to_le_bytes());
        put(0x20, &32_768_u32.to_le_bytes());
        put(0x28, &8192_u32.to_le_bytes());
        put(0x38, &MAGIC.to_le_bytes());
        put(0x3a, &state.to_le_bytes());
        put(0x58, &256_u16.to_le_bytes());
        put(0x60, &IS_64BIT.to_le_bytes());
        put(0xce, &127_u16.to_le_bytes());
        put(0xfe, &64_u16.to_le_bytes());
        head
    }

    #[test]
    fn a_superblock_says_how_much_of_the_device_it_has() {
        let found = Superblock::parse(&head(Bytes::GIB, 1)).unwrap();
        assert_eq!(found.size(), Bytes::GIB);
        let more = |bytes: u64| Bytes::new(Bytes::GIB.get() + bytes);
        assert!(found.fills(Bytes::GIB) && found.fills(more(4095)) && found.fills(Bytes::MIB));
        // 512 blocks of inodes, 1 of descriptors, 127 to come, 3, and 50.
        assert!(found.fills(more(692 * 4096)));
        assert!(!found.fills(more(693 * 4096)));
        assert!(!found.fills(more(Bytes::GIB.get())));
        // In a group that has begun every block is a gain.
        let begun = Superblock::parse(&head(more(64 << 20), 1)).unwrap();
        assert!(begun.fills(more(64 << 20)) && !begun.fills(more((64 << 20) + 4096)));
        let large = Bytes::new(20 << 40);
        assert_eq!(Superblock::parse(&head(large, 1)).unwrap().size(), large);
    }

    #[test]
    fn errors_that_the_kernel_has_found_are_seen() {
        for (state, errors) in [(0, false), (1, false), (2, true), (3, true), (5, false)] {
            let found = Superblock::parse(&head(Bytes::GIB, state)).unwrap();
            assert_eq!(found.has_errors(), errors, "{state}");
        }
    }

    #[test]
    fn what_is_no_superblock_is_none() {
        assert_eq!(Superblock::parse(&[]), None);
        assert_eq!(Superblock::parse(&[0; 4096]), None);
        let mut strange = head(Bytes::GIB, 1);
        strange[OFFSET + 0x18] = 7;
        assert_eq!(Superblock::parse(&strange), None);
        assert_eq!(Superblock::parse(&head(Bytes::GIB, 1)[..1100]), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 512), size: u64) {
            let mut head = vec![0; 1024];
            head.extend(bytes);
            head[OFFSET + 0x38..OFFSET + 0x3a].copy_from_slice(&MAGIC.to_le_bytes());
            head[OFFSET + 0x18..OFFSET + 0x1c].copy_from_slice(&2_u32.to_le_bytes());
            if let Some(found) = Superblock::parse(&head) {
                found.fills(Bytes::new(size));
            }
        }
    }
}
