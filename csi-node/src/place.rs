//! Where the kubelet wants a volume: below its root and nowhere else.
//!
//! It knows paths; it knows neither disks nor what is mounted.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::host::{Host, PathKind};

/// The path as the mount table has it. One that is not inside the kubelet's root is refused: no request reaches
/// anything else on the machine.
pub async fn resolve(host: &dyn Host, path: &Path) -> Result<PathBuf, Error> {
    let resolved = host.resolve(path).await?;
    if is_inside(host.kubelet_dir(), &resolved) {
        return Ok(resolved);
    }
    Err(wrong_path(
        path,
        "outside the kubelet's directory",
        "a path inside it",
    ))
}

/// Whether a resolved path is inside the kubelet's root. Outside of it, all of it may be seen a second time, where it
/// is bound to another path.
pub fn is_inside(root: &Path, path: &Path) -> bool {
    path != root && path.starts_with(root)
}

/// Makes the directory on which something is to be mounted, if it is not there. One that has content would be covered,
/// and that is somebody's.
pub async fn ensure_directory(host: &dyn Host, path: &Path) -> Result<(), Error> {
    let found = match host.kind(path).await? {
        PathKind::Directory if host.is_empty(path).await? => return Ok(()),
        PathKind::Directory => {
            return Err(Error::NotEmpty {
                path: path.to_owned(),
            });
        }
        PathKind::Missing => return Ok(host.create_dir(path).await?),
        PathKind::File(_) => "a file",
        PathKind::Device(_) => "a device",
        PathKind::Other => "a link or the like",
    };
    Err(wrong_path(path, found, "a directory"))
}

/// The error that something else is needed there.
pub fn wrong_path(path: &Path, found: &'static str, wanted: &'static str) -> Error {
    Error::WrongPath {
        path: path.to_owned(),
        found,
        wanted,
    }
}
