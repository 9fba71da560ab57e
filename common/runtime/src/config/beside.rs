//! Files that a config names: they lie beside it, or it may name none.

use std::path::{Path, PathBuf};

use super::tree::Node;

/// Where files that a config names are.
#[derive(Clone, Copy)]
pub(super) struct Beside<'a>(Option<&'a Path>);

impl<'a> Beside<'a> {
    /// There is nothing but the config.
    pub(super) const NOTHING: Self = Self(None);

    /// Relative names are relative to this folder.
    pub(super) const fn folder(folder: &'a Path) -> Self {
        Self(Some(folder))
    }

    /// The path of the file that is named here.
    pub(super) fn find(self, node: &Node<'_>) -> Result<PathBuf, String> {
        let name = node.file()?;
        match self.0 {
            Some(folder) => Ok(folder.join(name)),
            None => Err(node
                .refuse("names a file, and none but this config is there: give the value itself")),
        }
    }
}
