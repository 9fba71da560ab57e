//! Folders whose files change all at once, as the kubelet changes those of a Secret: each file is a link through
//! `..data`, which is a link to the folder of one generation and is replaced by a rename (`atomic_writer.go` of
//! Kubernetes).

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The link to the generation in force.
pub const CURRENT: &str = "..data";

/// Generations follow each other by a minute; two within one reading are a coincidence.
const TRIES: u32 = 5;

/// What `read` makes of the files of a folder, all of one generation: it is called again if they were changed meanwhile.
/// In a folder without generations it is called once. The error is of a folder that does not come to rest.
pub fn in_one_piece<T>(folder: &Path, mut read: impl FnMut() -> T) -> io::Result<T> {
    for _ in 0..TRIES {
        let before = generation(folder);
        let read = read();
        if generation(folder) == before {
            return Ok(read);
        }
    }
    let text = "its files change all the time";
    Err(io::Error::new(ErrorKind::ResourceBusy, text))
}

/// The generation in force of a folder that has such.
fn generation(folder: &Path) -> Option<PathBuf> {
    std::fs::read_link(folder.join(CURRENT)).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn swap(folder: &Path, generation: &str) {
        symlink(generation, folder.join("..new")).unwrap();
        std::fs::rename(folder.join("..new"), folder.join(CURRENT)).unwrap();
    }

    #[test]
    fn what_is_read_is_of_one_generation() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for generation in ["..1", "..2"] {
            std::fs::create_dir(folder.join(generation)).unwrap();
            for file in ["a", "b"] {
                std::fs::write(folder.join(generation).join(file), generation).unwrap();
            }
        }
        swap(folder, "..1");
        let read = |file: &str| std::fs::read_to_string(folder.join(CURRENT).join(file)).unwrap();
        let mut swaps = ["..2"].into_iter();
        let both = in_one_piece(folder, || {
            let first = read("a");
            swaps.by_ref().for_each(|next| swap(folder, next));
            (first, read("b"))
        });
        assert_eq!(both.unwrap(), ("..2".to_owned(), "..2".to_owned()));
    }

    #[test]
    fn a_folder_that_changes_all_the_time_is_an_error_and_one_without_generations_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut times = 0;
        let read = in_one_piece(folder.path(), || times += 1);
        read.unwrap();
        assert_eq!(times, 1);
        let mut times = 0;
        let read = in_one_piece(folder.path(), || {
            times += 1;
            swap(folder.path(), &format!("..{times}"));
        });
        assert_eq!(read.unwrap_err().kind(), ErrorKind::ResourceBusy);
        assert_eq!(times, TRIES);
    }
}
