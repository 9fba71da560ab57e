//! From compiled programs and packages to an archive.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::arch::Arch;
use crate::debian::{self, Apt, Archive, Deb};
use crate::dockerfile::{Base, Copy, Image};
use crate::layer::{Kind, Tree};
use crate::oci::{Blobs, Run};
use crate::run::repository;

/// The release whose certificate authorities are taken; that of the stage that compiles has the same ones, but for updates.
const AUTHORITIES: &str = "trixie";
/// What container engines and Debian's images set.
const SEARCH_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the images of one platform are made of.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) arch: Arch,
    /// Where the compiled programs lie.
    pub(crate) programs: &'a Path,
    /// A file of certificates, as Debian makes it.
    pub(crate) authorities: &'a [u8],
    /// Debian's roots by release.
    pub(crate) roots: &'a BTreeMap<String, Tree>,
}

/// What the config says to a runtime.
pub(crate) fn run(image: &Image) -> Run {
    Run {
        user: image.user.clone(),
        env: vec![SEARCH_PATH.to_owned()],
        entrypoint: image.entry_point.clone(),
        working_dir: "/".to_owned(),
        labels: image.labels.clone(),
    }
}

/// Adds an image for one platform to an archive: its manifest.
pub(crate) fn add(
    blobs: &mut Blobs,
    image: &Image,
    parts: &Parts,
    created: &str,
) -> Result<crate::oci::Descriptor> {
    let mut common = Tree::default();
    let mut own = Tree::default();
    for copy in &image.copies {
        let (bytes, mode) =
            content(copy, parts).with_context(|| format!("{}: {}", image.name, copy.source))?;
        let tree = if mode == 0o755 { &mut own } else { &mut common };
        tree.put(&copy.target, mode, bytes)?;
    }
    let run = run(image);
    match &image.base {
        Base::Scratch => blobs.image(parts.arch, &[&common, &own], &run, created),
        Base::Debian { suite, .. } => {
            let root = parts
                .roots
                .get(suite)
                .with_context(|| format!("no root of {suite}"))?;
            blobs.image(parts.arch, &[root, &common, &own], &run, created)
        }
    }
}

fn content(copy: &Copy, parts: &Parts) -> Result<(Vec<u8>, u32)> {
    if !copy.built {
        return Ok((std::fs::read(repository()?.join(&copy.source))?, 0o644));
    }
    match copy.source.as_str() {
        "/etc/ssl/certs/ca-certificates.crt" => Ok((parts.authorities.to_vec(), 0o644)),
        path => match path.strip_prefix("/out/") {
            Some(program) => Ok((std::fs::read(parts.programs.join(program))?, 0o755)),
            None => bail!("the stage that compiles has no such file here"),
        },
    }
}

/// The packages that the node's image gets.
pub(crate) fn packages() -> Result<Vec<String>> {
    let text = std::fs::read_to_string(repository()?.join("deploy/images/node.packages"))?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// Debian's roots that the images begin with, for one platform, and what is in them.
pub(crate) fn roots(
    images: &[Image],
    arch: Arch,
    work: &Path,
    archive: Archive,
) -> Result<BTreeMap<String, (Tree, Vec<Deb>)>> {
    let packages = packages()?;
    let mut all = BTreeMap::new();
    for image in images {
        let Base::Debian {
            suite,
            packages: with,
        } = &image.base
        else {
            continue;
        };
        let names: Vec<&str> = packages
            .iter()
            .map(String::as_str)
            .filter(|_| *with)
            .collect();
        let apt = Apt::new(&folder(work, suite, arch), &archive.release(suite), &[arch])?;
        let (tree, debs) = debian::root(&apt, &names)?;
        all.insert(suite.clone(), (tree, debs.into_iter().collect()));
    }
    Ok(all)
}

fn folder(work: &Path, suite: &str, arch: Arch) -> PathBuf {
    work.join(format!("{suite}-{arch}"))
}

/// All certificates of Debian's package, in the order of their names, as its script puts them together.
pub(crate) fn authorities(work: &Path, archive: Archive) -> Result<Vec<u8>> {
    let arch = Arch::host().unwrap_or(Arch::Amd64);
    let root = folder(work, "authorities", arch);
    let apt = Apt::new(&root, &archive.release(AUTHORITIES), &[arch])?;
    let debs = apt.closure(&["ca-certificates"], |deb| deb.name == "ca-certificates")?;
    let mut tree = Tree::default();
    for deb in apt.download(&debs)? {
        debian::unpack(&deb, &mut tree)?;
    }
    let mut all = Vec::new();
    for (path, entry) in tree.iter() {
        if let (true, Kind::File(bytes)) =
            (path.starts_with("usr/share/ca-certificates/"), &entry.kind)
        {
            all.extend_from_slice(bytes);
            if !bytes.ends_with(b"\n") {
                all.push(b'\n');
            }
        }
    }
    anyhow::ensure!(
        all.starts_with(b"-----BEGIN CERTIFICATE-----"),
        "ca-certificates has none"
    );
    Ok(all)
}
