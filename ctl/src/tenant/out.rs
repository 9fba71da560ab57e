//! Where the Secrets go: files for their owner alone, or standard output. A token's secret is told once by PVE, so it is
//! written before anything else is done.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pve_client::Program;
use secrecy::{ExposeSecret, SecretString};

use super::plan::Plan;
use super::secret::{self, Known};
use crate::output::Failure;

/// Largest file that is read. A Secret holds 1 MiB.
const MOST: u64 = 2 << 20;

/// Group and others may write.
const OTHERS_WRITE: u32 = 0o022;

/// Where Secrets go.
#[derive(Debug, Clone)]
pub(crate) enum Out {
    /// One file for each in this folder.
    Folder(PathBuf),
    /// Standard output.
    Stdout,
}

impl Out {
    /// Fails now rather than when there is a secret to write. A folder that is not there is made, for its owner alone.
    pub(crate) fn prepare(&self) -> Result<(), Failure> {
        let Self::Folder(folder) = self else {
            return Ok(());
        };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        let probe = folder.join(format!(".pvectl.{}", std::process::id()));
        let tried = made
            .and_then(|()| private(folder))
            .and_then(|()| write(&probe, b""))
            .and_then(|()| std::fs::remove_file(&probe));
        tried.or_else(|error| {
            Failure::refused(format!("cannot write to {}: {error}", folder.display()))
        })
    }

    fn path(folder: &Path, plan: &Plan, program: Program) -> PathBuf {
        folder.join(format!("{}.yaml", secret::name(plan, program)))
    }

    /// The Secret that was written earlier, if there is one.
    pub(crate) fn known(&self, plan: &Plan, program: Program) -> Result<Option<Known>, Failure> {
        let Self::Folder(folder) = self else {
            return Ok(None);
        };
        let path = Self::path(folder, plan, program);
        let mut text = String::new();
        let read = File::open(&path).and_then(|file| file.take(MOST).read_to_string(&mut text));
        match read {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Failure::refused(format!("cannot read {}: {error}", path.display()));
            }
        }
        match secret::read(plan, program, text.into()) {
            Ok(known) => Ok(Some(known)),
            Err(why) => Failure::refused(format!(
                "{} is not a Secret of this tenant: it {why}; put it elsewhere",
                path.display()
            )),
        }
    }

    /// Writes it; where it is, for the report.
    pub(crate) fn hand_over(
        &self,
        plan: &Plan,
        program: Program,
        manifest: &SecretString,
    ) -> Result<String, Failure> {
        let text = manifest.expose_secret();
        match self {
            Self::Stdout => {
                let mut out = std::io::stdout().lock();
                let written = write!(out, "---\n{text}").and_then(|()| out.flush());
                written.or_else(|error| Failure::failed(format!("standard output: {error}")))?;
                Ok("standard output".to_owned())
            }
            Self::Folder(folder) => {
                let path = Self::path(folder, plan, program);
                let new = folder.join(format!(
                    ".{}.{}",
                    secret::name(plan, program),
                    std::process::id()
                ));
                let written = write(&new, text.as_bytes())
                    .and_then(|()| std::fs::rename(&new, &path))
                    .and_then(|()| File::open(folder)?.sync_all());
                if let Err(error) = written {
                    // What is there of the same name and was not made here is refused, and stays.
                    if error.kind() != ErrorKind::AlreadyExists
                        && std::fs::remove_file(&new)
                            .is_err_and(|left| left.kind() != ErrorKind::NotFound)
                    {
                        eprintln!("pvectl: {} is left over, with a secret", new.display());
                    }
                    return Failure::failed(format!("{}: {error}", path.display()));
                }
                Ok(path.display().to_string())
            }
        }
    }
}

/// Whoever may write to a folder can put his own files into the place of ours.
fn private(folder: &Path) -> std::io::Result<()> {
    let found = std::fs::metadata(folder)?;
    let others = found.mode() & OTHERS_WRITE != 0;
    let ours = found.uid() == nix::unistd::geteuid().as_raw();
    if others || !ours {
        return Err(std::io::Error::other(
            "others may write to it: name a folder that is yours alone",
        ));
    }
    Ok(())
}

/// The file has to be new, so that nobody else has it open or has made it a link.
fn write(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::plan::tests::plan;
    use super::*;

    #[test]
    fn a_secret_lies_in_a_file_for_its_owner_alone_and_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let out = Out::Folder(folder.path().join("new"));
        out.prepare().unwrap();
        let plan = plan();
        assert!(out.known(&plan, Program::Csi).unwrap().is_none());
        let manifest = secret::manifest(&plan, Program::Csi, "s3cret");
        let at = out.hand_over(&plan, Program::Csi, &manifest).unwrap();
        assert!(at.ends_with("/new/blue-pve-csi.yaml"), "{at}");
        assert_eq!(std::fs::metadata(&at).unwrap().mode() & 0o777, 0o600);
        assert_eq!(
            std::fs::metadata(folder.path().join("new")).unwrap().mode() & 0o777,
            0o700
        );
        let known = out.known(&plan, Program::Csi).unwrap().unwrap();
        assert_eq!(known.secret.expose_secret(), "s3cret");
        std::fs::write(&at, "x: 1").unwrap();
        assert!(matches!(
            out.known(&plan, Program::Csi),
            Err(Failure::Refused(_))
        ));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_refused_before_there_is_a_secret() {
        let out = Out::Folder(PathBuf::from("/proc/self/nowhere"));
        assert!(matches!(out.prepare(), Err(Failure::Refused(_))));
    }

    #[test]
    fn a_folder_that_others_may_write_to_takes_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let out = Out::Folder(folder.path().to_owned());
        for (mode, good) in [(0o700, true), (0o755, true), (0o770, false), (0o777, false)] {
            std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(out.prepare().is_ok(), good, "{mode:o}");
        }
    }

    #[test]
    fn a_secret_goes_into_no_file_that_somebody_else_made() {
        let folder = tempfile::tempdir().unwrap();
        let out = Out::Folder(folder.path().to_owned());
        let (plan, theirs) = (plan(), folder.path().join("theirs"));
        std::fs::write(&theirs, "").unwrap();
        let temporary = format!(".blue-pve-csi.{}", std::process::id());
        symlink(&theirs, folder.path().join(temporary)).unwrap();
        let manifest = secret::manifest(&plan, Program::Csi, "s3cret");
        assert!(out.hand_over(&plan, Program::Csi, &manifest).is_err());
        assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "");
    }
}
