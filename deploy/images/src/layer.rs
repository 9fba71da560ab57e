//! A tree of files and the layer that is made of it: the same tree is the same bytes, whenever and wherever it is made.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use anyhow::{Context, Result, bail, ensure};
use tar::{Archive, Builder, EntryType, Header};

/// Folders that stand for others since Debian merged `/usr`.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// What a path is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Folder,
    File(Vec<u8>),
    Symlink(String),
    /// The path of another file of the tree.
    Hardlink(String),
}

/// A path's owner, mode and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) mode: u32,
    pub(crate) owner: (u64, u64),
    pub(crate) kind: Kind,
}

/// Paths without a leading slash, in the order of their bytes: folders come before what is in them.
#[derive(Debug, Default)]
pub(crate) struct Tree(BTreeMap<String, Entry>);

impl Tree {
    /// Puts a file of root's at an absolute path, with the folders above it.
    pub(crate) fn put(&mut self, path: &str, mode: u32, bytes: Vec<u8>) -> Result<()> {
        let path = clean(path)?;
        self.folders_above(&path);
        let kind = Kind::File(bytes);
        let owner = (0, 0);
        self.0.insert(path, Entry { mode, owner, kind });
        Ok(())
    }

    /// Puts a symbolic link of root's at an absolute path.
    pub(crate) fn link(&mut self, path: &str, to: &str) -> Result<()> {
        let path = clean(path)?;
        self.folders_above(&path);
        let entry = Entry {
            mode: 0o777,
            owner: (0, 0),
            kind: Kind::Symlink(to.to_owned()),
        };
        self.0.insert(path, entry);
        Ok(())
    }

    /// What lies at a path without a leading slash.
    pub(crate) fn get(&self, path: &str) -> Option<&Entry> {
        self.0.get(path)
    }

    /// Every path and what it is.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.0.iter()
    }

    /// Adds what a tar archive holds, where `wanted` says so of its path. Times are dropped.
    pub(crate) fn unpack(&mut self, from: impl Read, wanted: impl Fn(&str) -> bool) -> Result<()> {
        let mut archive = Archive::new(from);
        for entry in archive.entries()? {
            let mut entry = entry?;
            let path = clean(&text(&entry.path_bytes())?)?;
            if path.is_empty() || !wanted(&path) {
                continue;
            }
            let (path, header) = (merged(&path), entry.header());
            let mode = header.mode()? & 0o7777;
            let owner = (header.uid()?, header.gid()?);
            let link = entry
                .link_name_bytes()
                .map(|link| text(&link))
                .transpose()?;
            let link = || link.with_context(|| format!("{path}: a link to nowhere"));
            let kind = match header.entry_type() {
                EntryType::Directory => Kind::Folder,
                EntryType::Symlink => Kind::Symlink(link()?),
                EntryType::Link => Kind::Hardlink(merged(&clean(&link()?)?)),
                EntryType::Regular => {
                    let mut bytes = Vec::new();
                    entry.read_to_end(&mut bytes)?;
                    Kind::File(bytes)
                }
                other => bail!("{path} is a {other:?}"),
            };
            self.add(path, Entry { mode, owner, kind })?;
        }
        Ok(())
    }

    fn add(&mut self, path: String, entry: Entry) -> Result<()> {
        if let Some(there) = self.0.get(&path) {
            let both_folders = matches!((&there.kind, &entry.kind), (Kind::Folder, Kind::Folder));
            // A package that still ships /lib as a folder means the one in /usr.
            let stands_for =
                matches!(there.kind, Kind::Symlink(_)) && MERGED.contains(&path.as_str());
            ensure!(
                both_folders || stands_for || *there == entry,
                "{path} is in two packages"
            );
            return Ok(());
        }
        self.folders_above(&path);
        self.0.insert(path, entry);
        Ok(())
    }

    fn folders_above(&mut self, path: &str) {
        for (end, _) in path.match_indices('/') {
            let above = path.get(..end).unwrap_or_default();
            let folder = Entry {
                mode: 0o755,
                owner: (0, 0),
                kind: Kind::Folder,
            };
            self.0.entry(above.to_owned()).or_insert(folder);
        }
    }

    /// The tar archive: times zero, owners by number, in order; hard links last, since what they name has to be there.
    pub(crate) fn tar(&self) -> Result<Vec<u8>> {
        let mut builder = Builder::new(Vec::new());
        let (links, others): (Vec<_>, Vec<_>) = self
            .0
            .iter()
            .partition(|(_, entry)| matches!(entry.kind, Kind::Hardlink(_)));
        for (path, entry) in others.into_iter().chain(links) {
            append(&mut builder, path, entry).with_context(|| path.clone())?;
        }
        Ok(builder.into_inner()?)
    }

    /// The sizes of all files, in bytes.
    pub(crate) fn size(&self) -> usize {
        let files = self.0.values().map(|entry| match &entry.kind {
            Kind::File(bytes) => bytes.len(),
            Kind::Folder | Kind::Symlink(_) | Kind::Hardlink(_) => 0,
        });
        files.sum()
    }
}

fn append<W: Write>(builder: &mut Builder<W>, path: &str, entry: &Entry) -> Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(entry.mode);
    header.set_uid(entry.owner.0);
    header.set_gid(entry.owner.1);
    header.set_mtime(0);
    header.set_size(0);
    match &entry.kind {
        Kind::Folder => {
            header.set_entry_type(EntryType::Directory);
            builder.append_data(&mut header, format!("{path}/"), std::io::empty())?;
        }
        Kind::File(bytes) => {
            header.set_entry_type(EntryType::Regular);
            header.set_size(u64::try_from(bytes.len())?);
            builder.append_data(&mut header, path, bytes.as_slice())?;
        }
        Kind::Symlink(to) => {
            header.set_entry_type(EntryType::Symlink);
            builder.append_link(&mut header, path, to)?;
        }
        Kind::Hardlink(to) => {
            header.set_entry_type(EntryType::Link);
            builder.append_link(&mut header, path, to)?;
        }
    }
    Ok(())
}

fn text(bytes: &[u8]) -> Result<String> {
    let text = std::str::from_utf8(bytes).context("a path that is not UTF-8")?;
    Ok(text.to_owned())
}

/// Without `./`, leading and trailing slashes; nothing that leads out of the tree.
fn clean(path: &str) -> Result<String> {
    let parts: Vec<&str> = path
        .split('/')
        .filter(|part| !["", "."].contains(part))
        .collect();
    ensure!(!parts.contains(&".."), "{path} leads out of the tree");
    Ok(parts.join("/"))
}

fn merged(path: &str) -> String {
    match path.split_once('/') {
        Some((first, _)) if MERGED.contains(&first) => format!("usr/{path}"),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
#[path = "layer_tests.rs"]
mod tests;
