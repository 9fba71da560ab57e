//! The tenant's kubeconfig, divided: one for each program, which acts as its own service account of the tenant, so that
//! the rights of that account bind it. All name the same files, which client-go reads again while it runs.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use pve_kube::{Access, KubeconfigError};

use crate::{Files, Trouble};

/// What a kubeconfig is called that acts as whom its credentials are for.
const PLAIN: &str = "tenant";
const LONGEST_NAME: usize = 63;
const LONGEST_USER: usize = 512;

/// `NAME=USER`: a kubeconfig of that name, as that user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impersonation {
    /// The file is `<name>.kubeconfig`.
    pub name: String,
    /// Who is acted as: `system:serviceaccount:<namespace>:<name>`.
    pub user: String,
}

impl std::str::FromStr for Impersonation {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, user) = text.split_once('=').ok_or("must be NAME=USER")?;
        let word = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(word) {
            return Err("NAME must be of lower-case letters, digits and dashes");
        }
        // It becomes the value of a header.
        let printed = user.bytes().all(|c| c.is_ascii_graphic());
        if user.is_empty() || user.len() > LONGEST_USER || !printed {
            return Err("USER must be the name of a user of the tenant's cluster, without blanks");
        }
        Ok(Self {
            name: name.to_owned(),
            user: user.to_owned(),
        })
    }
}

/// The files that follow from a kubeconfig: without impersonations `tenant.kubeconfig`.
pub async fn files(source: &Path, impersonations: &[Impersonation]) -> Result<Files, Trouble> {
    let access = Access::read(source).await.map_err(|error| match error {
        KubeconfigError::Read(error) if error.kind() == ErrorKind::NotFound => {
            Trouble::Absent(source.display().to_string())
        }
        KubeconfigError::Read(error) => Trouble::Failed(format!("the kubeconfig: {error}")),
        other => Trouble::Refused(other.to_string()),
    })?;
    let beside = access.files().into_iter();
    let mut files: Files = beside.map(|(name, text)| (name.to_owned(), text)).collect();
    let mut users: BTreeMap<&str, Option<&str>> = impersonations
        .iter()
        .map(|one| (one.name.as_str(), Some(one.user.as_str())))
        .collect();
    if users.is_empty() {
        users.insert(PLAIN, None);
    }
    for (name, user) in users {
        let text = access.kubeconfig(user);
        files.insert(format!("{name}.kubeconfig"), text.into());
    }
    Ok(files)
}
