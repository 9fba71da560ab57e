//! The keys and certificates of a control plane, made anew for each run.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

const NAMES: [&str; 4] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
];

/// Paths of PEM files.
#[derive(Debug, Clone)]
pub(super) struct Pki {
    /// Certificate of the authority.
    pub(super) ca: PathBuf,
    /// Certificates of the authorities whose clients the API server accepts; it reads the file again when it changes.
    pub(super) clients: PathBuf,
    /// Serving certificate of the API server.
    pub(super) serving: PathBuf,
    /// Its key, PKCS#8.
    pub(super) serving_key: PathBuf,
    /// P-256 key that signs the tokens of service accounts, PKCS#8.
    pub(super) accounts_key: PathBuf,
    /// Its public half, `SubjectPublicKeyInfo`.
    pub(super) accounts: PathBuf,
}

impl Pki {
    /// Writes everything into `folder`. `service` is the address of the service `kubernetes`.
    pub(super) fn create(folder: &Path, service: Ipv4Addr) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let write = |name: &str, pem: &str| -> Result<PathBuf> {
            let path = folder.join(name);
            std::fs::write(&path, pem)?;
            Ok(path)
        };
        let ca = CertifiedIssuer::self_signed(authority(), KeyPair::generate()?)?;
        let serving_key = KeyPair::generate()?;
        let serving = serving(service)?.signed_by(&serving_key, &ca)?;
        let accounts = KeyPair::generate()?;
        Ok(Self {
            ca: write("ca.crt", &ca.pem())?,
            clients: write("clients.crt", &ca.pem())?,
            serving: write("apiserver.crt", &serving.pem())?,
            serving_key: write("apiserver.key", &serving_key.serialize_pem())?,
            accounts_key: write("accounts.key", &accounts.serialize_pem())?,
            accounts: write("accounts.pub", &accounts.public_key_pem())?,
        })
    }
}

pub(super) fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "test authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}

fn serving(service: Ipv4Addr) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(NAMES.map(str::to_owned))?;
    params
        .distinguished_name
        .push(DnType::CommonName, "kube-apiserver");
    for address in [Ipv4Addr::LOCALHOST, service] {
        params
            .subject_alt_names
            .push(SanType::IpAddress(IpAddr::V4(address)));
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // Go's verifier finds the authority by this identifier when subjects are alike.
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}
