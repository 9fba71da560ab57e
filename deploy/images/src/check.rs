//! Looks at an archive as a stranger would: whether it is what the specification and the Dockerfile say, and whether
//! anything is in it that must not be.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use regex::bytes::Regex;
use serde::de::DeserializeOwned;

use crate::arch::Arch;
use crate::build;
use crate::dockerfile::{Base, Image};
use crate::elf::Elf;
use crate::layer::{Kind, Tree};
use crate::oci::{
    CONFIG, Config, Descriptor, INDEX, Index, LAYER, LAYOUT, MANIFEST, Manifest, blob_path, digest,
    files, gunzip,
};

/// Bytes that an image of these programs may have, packed or unpacked (docs/images.md).
const LIMITS: [(&str, usize); 2] = [("pve-csi-controller", 15_000_000), ("pve-ccm", 15_000_000)];

/// What the node's image brings beside the plugin.
pub(crate) const TOOLS: [&str; 13] = [
    "blkid",
    "blockdev",
    "btrfs",
    "cryptsetup",
    "e2fsck",
    "mkfs.btrfs",
    "mkfs.ext4",
    "mkfs.xfs",
    "mount",
    "resize2fs",
    "umount",
    "xfs_growfs",
    "xfs_repair",
];

/// What must not be in an image.
#[derive(Debug)]
pub(crate) struct Forbidden {
    /// Paths of the machine that built it.
    pub(crate) paths: Vec<String>,
    secrets: Regex,
}

/// What was seen of one platform of an image.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) arch: String,
    /// Of the program, in bytes.
    pub(crate) program: usize,
    /// Of all files, in bytes.
    pub(crate) unpacked: usize,
    /// Of the layers as they are transferred, in bytes.
    pub(crate) packed: usize,
    /// All of its files.
    pub(crate) tree: Tree,
}

impl Forbidden {
    /// Secrets, and these paths.
    pub(crate) fn new(paths: Vec<String>) -> Result<Self> {
        // A key with its body: programs that read keys have the first line alone. A PVE token with its secret.
        let secrets = r"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/]{40}|PVEAPIToken=[^\s{}]+=[0-9a-f]{8}-";
        Ok(Self {
            paths,
            secrets: Regex::new(secrets)?,
        })
    }

    fn look(&self, path: &str, bytes: &[u8]) -> Result<()> {
        ensure!(!self.secrets.is_match(bytes), "{path} holds a secret");
        for forbidden in &self.paths {
            let found = bytes
                .windows(forbidden.len())
                .any(|part| part == forbidden.as_bytes());
            ensure!(
                !found,
                "{path} holds {forbidden}, a path of the machine that built it"
            );
        }
        Ok(())
    }
}

/// Checks an archive of `image` for all of its platforms.
pub(crate) fn archive(bytes: &[u8], image: &Image, forbidden: &Forbidden) -> Result<Vec<Seen>> {
    let mut layout = Layout {
        files: files(bytes)?,
        read: BTreeSet::new(),
    };
    let marker = layout.files.remove("oci-layout").context("no oci-layout")?;
    ensure!(
        marker == LAYOUT.as_bytes(),
        "an oci-layout of another version"
    );
    let top = layout.files.remove("index.json").context("no index.json")?;
    let top: Index = serde_json::from_slice(&top).context("index.json")?;
    let [inner] = top.manifests.as_slice() else {
        anyhow::bail!("index.json names {} images", top.manifests.len());
    };
    let inner: Index = layout.json(inner, INDEX)?;
    ensure!(!inner.manifests.is_empty(), "an image for no platform");
    let mut all = Vec::new();
    for manifest in &inner.manifests {
        all.push(platform(&mut layout, manifest, image, forbidden)?);
    }
    for path in layout.files.keys() {
        ensure!(layout.read.contains(path), "{path} belongs to nothing");
    }
    Ok(all)
}

/// The files of an archive, and which of them have been asked for.
struct Layout {
    files: BTreeMap<String, Vec<u8>>,
    read: BTreeSet<String>,
}

impl Layout {
    fn blob(&mut self, descriptor: &Descriptor, media_type: &str) -> Result<&[u8]> {
        let Descriptor {
            digest: named,
            size,
            ..
        } = descriptor;
        ensure!(
            descriptor.media_type == media_type,
            "{named} is a {}, not a {media_type}",
            descriptor.media_type
        );
        let path = blob_path(named)?;
        let bytes = self
            .files
            .get(&path)
            .with_context(|| format!("no {path}"))?;
        ensure!(
            bytes.len() == *size,
            "{path} has {} bytes, not {size}",
            bytes.len()
        );
        ensure!(digest(bytes) == *named, "{path} has another digest");
        self.read.insert(path);
        Ok(bytes)
    }

    fn json<T: DeserializeOwned>(
        &mut self,
        descriptor: &Descriptor,
        media_type: &str,
    ) -> Result<T> {
        serde_json::from_slice(self.blob(descriptor, media_type)?)
            .with_context(|| descriptor.digest.clone())
    }
}

fn platform(
    layout: &mut Layout,
    descriptor: &Descriptor,
    image: &Image,
    forbidden: &Forbidden,
) -> Result<Seen> {
    let manifest: Manifest = layout.json(descriptor, MANIFEST)?;
    let config: Config = layout.json(&manifest.config, CONFIG)?;
    let platform = descriptor
        .platform
        .as_ref()
        .context("a manifest without a platform")?;
    ensure!(
        (&platform.architecture, &platform.os) == (&config.architecture, &config.os)
            && config.os == "linux",
        "index and config disagree on the platform"
    );
    ensure!(
        config.run == build::run(image),
        "the config differs from the Dockerfile: {:?}",
        config.run
    );
    ensure!(
        manifest.layers.len() == config.rootfs.diff_ids.len(),
        "layers and diff_ids differ in number"
    );
    let mut tree = Tree::default();
    let mut packed = 0;
    for (layer, diff_id) in manifest.layers.iter().zip(&config.rootfs.diff_ids) {
        let tar = gunzip(layout.blob(layer, LAYER)?)?;
        ensure!(digest(&tar) == *diff_id, "a layer differs from its diff_id");
        tree.unpack(tar.as_slice(), |_| true)?;
        packed += layer.size;
    }
    let program = program(&tree, image, &config.architecture)?;
    for (path, entry) in tree.iter() {
        if let Kind::File(bytes) = &entry.kind {
            forbidden.look(path, bytes)?;
        }
    }
    let (arch, unpacked) = (config.architecture, tree.size());
    for (name, limit) in LIMITS.iter().filter(|(name, _)| *name == image.name) {
        ensure!(
            unpacked.max(packed) <= *limit,
            "{name} for {arch} has {unpacked} bytes ({packed} packed), more than {limit}"
        );
    }
    Ok(Seen {
        arch,
        program,
        unpacked,
        packed,
        tree,
    })
}

/// The size of the program that the image runs, if it is one that runs there.
fn program(tree: &Tree, image: &Image, arch: &str) -> Result<usize> {
    let name = image.program()?;
    let entry = tree.get(name).with_context(|| format!("no /{name}"))?;
    let Kind::File(bytes) = &entry.kind else {
        anyhow::bail!("/{name} is not a file");
    };
    ensure!(entry.mode == 0o755, "/{name} has the mode {:o}", entry.mode);
    let elf = Elf::read(bytes).with_context(|| format!("/{name}"))?;
    let wanted = [Arch::Amd64, Arch::Arm64]
        .into_iter()
        .find(|known| known.name() == arch);
    let wanted = wanted.with_context(|| format!("{arch} is no platform of ours"))?;
    ensure!(
        elf.machine == wanted.elf_machine(),
        "/{name} is for another processor than {arch}"
    );
    ensure!(elf.is_static, "/{name} needs a loader");
    match image.base {
        Base::Scratch => ensure!(
            tree.get("etc/ssl/certs/ca-certificates.crt").is_some(),
            "no certificate authorities"
        ),
        Base::Debian { .. } => {
            for tool in TOOLS {
                let there =
                    ["usr/sbin", "usr/bin"].map(|folder| tree.get(&format!("{folder}/{tool}")));
                ensure!(there.iter().any(Option::is_some), "no {tool}");
            }
        }
    }
    Ok(bytes.len())
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
