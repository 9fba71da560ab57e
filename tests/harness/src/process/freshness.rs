//! Whether a program was built from the sources as they are now.
//!
//! cargo writes a file beside each program with the paths of all sources that it was built from, and brings it up to date at
//! each build (The Cargo Book, "Build cache", "Dep-info files"). Sources that are only part of tests are not in it.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Why `program` is not what its sources say, or nothing. A program without such a file was brought from elsewhere.
///
/// `package` is a folder in the copy of the repository that runs the test. A build folder may be shared by several: what
/// another one has built there counts as stale.
pub(super) fn stale(program: &Path, package: Option<&Path>) -> io::Result<Option<String>> {
    let list = match std::fs::read_to_string(program.with_extension("d")) {
        Ok(list) => list,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let sources = sources(&list);
    let copy = package.and_then(|package| {
        package
            .ancestors()
            .find(|folder| folder.join("Cargo.lock").is_file())
    });
    if let Some(copy) = copy
        && !sources.iter().any(|source| source.starts_with(copy))
    {
        return Ok(Some(
            "it was built from another copy of the repository".to_owned(),
        ));
    }
    let built = changed(program)?;
    for source in sources {
        let why = match changed(&source) {
            Ok(changed) if changed > built => "is newer",
            Err(error) if error.kind() == ErrorKind::NotFound => "is gone",
            // Who runs a program needs no access to its sources.
            Ok(_) | Err(_) => continue,
        };
        return Ok(Some(format!("{} {why}", source.display())));
    }
    Ok(None)
}

fn changed(path: &Path) -> io::Result<SystemTime> {
    std::fs::metadata(path)?.modified()
}

/// Of `program: source source`, as in a makefile: blanks in paths are escaped.
fn sources(list: &str) -> Vec<PathBuf> {
    let escaped = list.replace("\\ ", "\0");
    let (_, sources) = escaped.split_once(": ").unwrap_or_default();
    sources
        .split_whitespace()
        .map(|source| PathBuf::from(source.replace('\0', " ")))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{File, create_dir_all, remove_file, write};
    use std::time::Duration;

    use super::*;

    /// A copy of the repository with one source, and a program built from it two seconds later.
    fn built() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("a copy");
        create_dir_all(copy.join("src")).unwrap();
        let (source, program) = (copy.join("src/main.rs"), folder.path().join("program"));
        for path in [&source, &copy.join("Cargo.lock"), &program] {
            write(path, "").unwrap();
        }
        age(&program, 98);
        age(&source, 100);
        let escaped = source.display().to_string().replace(' ', "\\ ");
        let list = format!("{}: {escaped}\n", program.display());
        write(program.with_extension("d"), list).unwrap();
        (folder, source, program)
    }

    fn age(path: &Path, seconds: u64) {
        let then = changed(path).unwrap() - Duration::from_secs(seconds);
        File::open(path).unwrap().set_modified(then).unwrap();
    }

    fn verdict(source: &Path, program: &Path) -> Option<String> {
        stale(program, source.parent()).unwrap()
    }

    #[test]
    fn a_program_is_good_until_one_of_its_sources_changes_or_goes() {
        let (_folder, source, program) = built();
        assert_eq!(verdict(&source, &program), None);
        write(source.with_file_name("tests.rs"), "").unwrap();
        assert_eq!(
            verdict(&source, &program),
            None,
            "it is not built from that"
        );
        write(&source, "").unwrap();
        let why = verdict(&source, &program).unwrap();
        assert_eq!(why, format!("{} is newer", source.display()));
        remove_file(&source).unwrap();
        let why = verdict(&source, &program).unwrap();
        assert_eq!(why, format!("{} is gone", source.display()));
    }

    #[test]
    fn a_program_of_another_copy_in_a_shared_build_folder_is_not_good() {
        let (_folder, _, program) = built();
        let (_other, source, _) = built();
        let why = verdict(&source, &program).unwrap();
        assert!(why.contains("another copy"), "{why}");
        assert_eq!(stale(&program, None).unwrap(), None);
    }

    #[test]
    fn a_program_that_was_brought_from_elsewhere_is_taken_as_it_is() {
        let (_folder, source, program) = built();
        remove_file(program.with_extension("d")).unwrap();
        write(&source, "").unwrap();
        assert_eq!(verdict(&source, &program), None);
    }
}
