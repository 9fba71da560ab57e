//! Reading small files whose length nobody vouches for.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

/// The text of a regular file of at most `most` bytes. A device or a pipe has a length of 0 and no end.
pub(crate) fn read_to_string(path: &Path, most: u64) -> io::Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    let mut text = String::new();
    let read = File::open(path)?
        .take(most.saturating_add(1))
        .read_to_string(&mut text)?;
    if u64::try_from(read).is_ok_and(|read| read <= most) {
        return Ok(text);
    }
    Err(ErrorKind::FileTooLarge.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_or_has_no_end_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        std::fs::write(&file, "12345").unwrap();
        let read = |most| read_to_string(&file, most).map_err(|error| error.kind());
        assert_eq!(read(5).as_deref(), Ok("12345"));
        assert_eq!(read(4), Err(ErrorKind::FileTooLarge));
        for endless in ["/dev/zero", "/dev", "/proc/self/fd"] {
            let error = read_to_string(Path::new(endless), 5).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{endless}");
        }
    }
}
