//! The certificates of a simulated cluster: a CA of its own and one server certificate for the loopback addresses and node names.

use std::sync::{Arc, Mutex, PoisonError};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::SimError;

/// What a client needs to trust the server, and the server's side.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) ca_pem: String,
    /// `AA:BB:…`, SHA-256 of the server certificate as PVE prints it.
    pub(crate) fingerprint: String,
    pub(crate) acceptor: TlsAcceptor,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

/// The certificate that is presented, and the one that is to follow it.
#[derive(Debug)]
pub(crate) struct Certificates {
    current: watch::Sender<Option<Identity>>,
    next: Mutex<Option<Identity>>,
}

impl Default for Certificates {
    fn default() -> Self {
        Self {
            current: watch::Sender::new(None),
            next: Mutex::default(),
        }
    }
}

impl Certificates {
    pub(crate) fn current(&self) -> Option<Identity> {
        self.current.borrow().clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Identity>> {
        self.current.subscribe()
    }

    /// Connections that are open go on, each until its next answer: pveproxy's workers end so when it is reloaded.
    pub(crate) fn present(&self, identity: Identity) {
        self.current.send_replace(Some(identity));
    }

    /// Makes the one that is to follow, of a CA of its own.
    pub(crate) fn prepare(&self, names: &[String]) -> Result<Identity, SimError> {
        let identity = generate(names)?;
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next = Some(identity.clone());
        Ok(identity)
    }

    /// Presents the one that was prepared; false if none was.
    pub(crate) fn present_next(&self) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(identity) = next.take() else {
            return false;
        };
        self.present(identity);
        true
    }
}

pub(crate) fn generate(names: &[String]) -> Result<Identity, SimError> {
    let mut ca_params = CertificateParams::new(Vec::<String>::new())?;
    ca_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca_params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    ca_params
        .distinguished_name
        .push(DnType::CommonName, "Proxmox Virtual Environment");
    let ca_key = KeyPair::generate()?;
    let ca = ca_params.self_signed(&ca_key)?;
    let issuer = Issuer::new(ca_params, ca_key);
    let mut sans = vec![
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
        "localhost".to_owned(),
    ];
    sans.extend(names.iter().cloned());
    let mut params = CertificateParams::new(sans)?;
    params
        .distinguished_name
        .push(DnType::CommonName, "pve-sim");
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    let fingerprint: Vec<String> = Sha256::digest(certificate.der())
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect();
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()?
    .with_no_client_auth()
    .with_single_cert(vec![certificate.der().clone()], private)?;
    Ok(Identity {
        ca_pem: ca.pem(),
        fingerprint: fingerprint.join(":"),
        acceptor: TlsAcceptor::from(Arc::new(config)),
    })
}
