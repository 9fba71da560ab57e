//! An OCI archive: the layout of the image specification (`oci-layout`, `index.json`, `blobs/`) in one tar file, as
//! skopeo's `oci-archive:`, `ctr image import` and `docker load` read it.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::arch::Arch;
use crate::layer::{Kind, Tree};

pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(crate) const LAYOUT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;
/// Under which tag skopeo finds an image, and under which name containerd and Docker keep it.
pub(crate) const REF_NAME: &str = "org.opencontainers.image.ref.name";
pub(crate) const IMAGE_NAME: &str = "io.containerd.image.name";

/// Where content is and what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    pub(crate) digest: String,
    pub(crate) size: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
}

/// What an image runs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Platform {
    pub(crate) architecture: String,
    pub(crate) os: String,
}

/// An index of manifests, or of other indexes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Index {
    pub(crate) schema_version: u32,
    pub(crate) media_type: String,
    pub(crate) manifests: Vec<Descriptor>,
}

/// The image for one platform.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) schema_version: u32,
    pub(crate) media_type: String,
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// What an image is run with.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) created: String,
    pub(crate) architecture: String,
    pub(crate) os: String,
    #[serde(rename = "config")]
    pub(crate) run: Run,
    pub(crate) rootfs: RootFs,
}

/// The part of the config that a runtime reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(crate) struct Run {
    pub(crate) user: String,
    pub(crate) env: Vec<String>,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) working_dir: String,
    pub(crate) labels: BTreeMap<String, String>,
}

/// The layers before they were compressed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RootFs {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) diff_ids: Vec<String>,
}

/// Content by its digest (`sha256:…`).
#[derive(Debug, Default)]
pub(crate) struct Blobs(BTreeMap<String, Vec<u8>>);

impl Blobs {
    /// Keeps content: its descriptor.
    pub(crate) fn add(&mut self, media_type: &str, bytes: Vec<u8>) -> Descriptor {
        let digest = digest(&bytes);
        let size = bytes.len();
        self.0.insert(digest.clone(), bytes);
        Descriptor {
            media_type: media_type.to_owned(),
            digest,
            size,
            platform: None,
            annotations: BTreeMap::new(),
        }
    }

    fn add_json<T: Serialize>(&mut self, media_type: &str, value: &T) -> Result<Descriptor> {
        Ok(self.add(media_type, serde_json::to_vec(value)?))
    }

    /// The image for one platform: its manifest's descriptor.
    pub(crate) fn image(
        &mut self,
        arch: Arch,
        layers: &[&Tree],
        run: &Run,
        created: &str,
    ) -> Result<Descriptor> {
        let mut described = Vec::new();
        let mut diff_ids = Vec::new();
        for layer in layers {
            let tar = layer.tar()?;
            diff_ids.push(digest(&tar));
            described.push(self.add(LAYER, gzip(&tar)?));
        }
        let platform = Platform {
            architecture: arch.name().to_owned(),
            os: "linux".to_owned(),
        };
        let config = Config {
            created: created.to_owned(),
            architecture: platform.architecture.clone(),
            os: platform.os.clone(),
            run: run.clone(),
            rootfs: RootFs {
                kind: "layers".to_owned(),
                diff_ids,
            },
        };
        let manifest = Manifest {
            schema_version: 2,
            media_type: MANIFEST.to_owned(),
            config: self.add_json(CONFIG, &config)?,
            layers: described,
        };
        let mut descriptor = self.add_json(MANIFEST, &manifest)?;
        descriptor.platform = Some(platform);
        Ok(descriptor)
    }

    /// The archive of the image `name:tag` with these manifests.
    pub(crate) fn archive(
        mut self,
        manifests: Vec<Descriptor>,
        name: &str,
        tag: &str,
    ) -> Result<Vec<u8>> {
        let mut image = self.add_json(INDEX, &index(manifests))?;
        image.annotations = [
            (REF_NAME.to_owned(), tag.to_owned()),
            (IMAGE_NAME.to_owned(), format!("{name}:{tag}")),
        ]
        .into();
        let mut tree = Tree::default();
        tree.put("oci-layout", 0o644, LAYOUT.as_bytes().to_vec())?;
        tree.put(
            "index.json",
            0o644,
            serde_json::to_vec(&index(vec![image]))?,
        )?;
        for (digest, bytes) in self.0 {
            tree.put(&blob_path(&digest)?, 0o644, bytes)?;
        }
        tree.tar()
    }
}

fn index(manifests: Vec<Descriptor>) -> Index {
    Index {
        schema_version: 2,
        media_type: INDEX.to_owned(),
        manifests,
    }
}

/// `sha256:…` of content.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .fold("sha256:".to_owned(), |text, byte| {
            format!("{text}{byte:02x}")
        })
}

/// Where the layout has content of this digest.
pub(crate) fn blob_path(digest: &str) -> Result<String> {
    let hex = digest
        .strip_prefix("sha256:")
        .context("not a SHA-256 digest")?;
    ensure!(
        hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{digest} is no digest"
    );
    Ok(format!("blobs/sha256/{hex}"))
}

/// Without a name and a time in its header.
fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new()
        .mtime(0)
        .write(Vec::new(), Compression::best());
    writer.write_all(bytes)?;
    Ok(writer.finish()?)
}

/// The opposite of [`gzip`].
pub(crate) fn gunzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut all)?;
    Ok(all)
}

/// The files of an archive by their path.
pub(crate) fn files(archive: &[u8]) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut tree = Tree::default();
    tree.unpack(archive, |_| true)?;
    let files = tree.iter().filter_map(|(path, entry)| match &entry.kind {
        Kind::File(bytes) => Some((path.clone(), bytes.clone())),
        Kind::Folder | Kind::Symlink(_) | Kind::Hardlink(_) => None,
    });
    Ok(files.collect())
}
