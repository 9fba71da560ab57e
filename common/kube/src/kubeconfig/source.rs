//! What stands in a kubeconfig and, if it was written by `pve-credentials`, in the files beside it.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use secrecy::{ExposeSecret, SecretString};
use tokio::fs::File;
use tokio::io::AsyncReadExt;

use super::{KubeconfigError, told};

/// A Secret can't hold more.
pub(super) const FILE_MAX: u64 = 1 << 20;

pub(super) const CA: &str = "ca.crt";
pub(super) const CERTIFICATE: &str = "client.crt";
pub(super) const KEY: &str = "client.key";
pub(super) const TOKEN: &str = "token";
/// The files that a kubeconfig may name. client-go reads them again while it runs, and never the kubeconfig.
const FILES: [&str; 4] = [CA, CERTIFICATE, KEY, TOKEN];

/// The link to the generation in force of a folder whose files change all at once: the kubelet's for those of a Secret.
const CURRENT: &str = "..data";
/// Generations follow each other by a minute; two within one reading are a coincidence.
const TRIES: u32 = 5;

/// The texts as they were at one moment.
#[derive(Clone)]
pub(super) struct Source {
    text: SecretString,
    /// Empty unless the folder is one whose files change all at once: there they are all of the same maker.
    beside: BTreeMap<&'static str, SecretString>,
}

impl Source {
    pub(super) async fn read(path: &Path) -> io::Result<Self> {
        let folder = path.parent().unwrap_or(Path::new(""));
        for _ in 0..TRIES {
            let before = generation(folder).await;
            let text = read(path).await?;
            let mut beside = BTreeMap::new();
            for name in FILES.into_iter().filter(|_| before.is_some()) {
                match read(&folder.join(name)).await {
                    Ok(text) => drop(beside.insert(name, text)),
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
            if generation(folder).await == before {
                return Ok(Self { text, beside });
            }
        }
        let text = "its folder changes all the time";
        Err(io::Error::new(ErrorKind::ResourceBusy, text))
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        let same =
            |one: &SecretString, other: &SecretString| one.expose_secret() == other.expose_secret();
        let pairs = || self.beside.iter().zip(&other.beside);
        same(&self.text, &other.text)
            && self.beside.len() == other.beside.len()
            && pairs().all(|((a, one), (b, other))| a == b && same(one, other))
    }

    /// The kubeconfig, which names no files any more that may be named.
    pub(super) fn kubeconfig(&self) -> Result<Kubeconfig, KubeconfigError> {
        let mut file = Kubeconfig::from_yaml(self.text.expose_secret()).map_err(told)?;
        let clusters = file.clusters.iter_mut();
        for cluster in clusters.filter_map(|cluster| cluster.cluster.as_mut()) {
            self.fill_cluster(cluster);
        }
        let users = file.auth_infos.iter_mut();
        for user in users.filter_map(|user| user.auth_info.as_mut()) {
            self.fill_user(user);
        }
        Ok(file)
    }

    fn fill_cluster(&self, cluster: &mut Cluster) {
        if cluster.certificate_authority_data.is_none()
            && let Some(text) = self.named(cluster.certificate_authority.as_ref(), CA)
        {
            cluster.certificate_authority_data = Some(BASE64.encode(text));
            cluster.certificate_authority = None;
        }
    }

    fn fill_user(&self, user: &mut AuthInfo) {
        if user.client_certificate_data.is_none()
            && let Some(text) = self.named(user.client_certificate.as_ref(), CERTIFICATE)
        {
            user.client_certificate_data = Some(BASE64.encode(text));
            user.client_certificate = None;
        }
        if user.client_key_data.is_none()
            && let Some(text) = self.named(user.client_key.as_ref(), KEY)
        {
            user.client_key_data = Some(BASE64.encode(text).into());
            user.client_key = None;
        }
        if user.token.is_none()
            && let Some(text) = self.named(user.token_file.as_ref(), TOKEN)
        {
            user.token = Some(text.trim().into());
            user.token_file = None;
        }
    }

    /// The text of the file if that is the one which is named.
    fn named(&self, named: Option<&String>, file: &str) -> Option<&str> {
        named.filter(|named| *named == file)?;
        self.beside.get(file).map(ExposeSecret::expose_secret)
    }
}

async fn generation(folder: &Path) -> Option<PathBuf> {
    tokio::fs::read_link(folder.join(CURRENT)).await.ok()
}

/// The text of a regular file: a pipe may have no end.
async fn read(path: &Path) -> io::Result<SecretString> {
    if !tokio::fs::metadata(path).await?.is_file() {
        let text = "not a regular file";
        return Err(io::Error::new(ErrorKind::InvalidInput, text));
    }
    let mut text = String::new();
    let mut file = File::open(path).await?.take(FILE_MAX + 1);
    file.read_to_string(&mut text).await?;
    if file.limit() == 0 {
        return Err(ErrorKind::FileTooLarge.into());
    }
    Ok(text.into())
}
