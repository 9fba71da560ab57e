//! How an endpoint proves that it is the one that was meant.
//!
//! rustls with ring, chosen here explicitly: no process-wide default decides.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use sha2::{Digest, Sha256};

use crate::config::Trust;

/// The TLS settings that this trust means, or why there are none.
pub(crate) fn config(trust: &Trust) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let pinned = |fingerprint| {
        Arc::new(Pinned {
            fingerprint,
            provider,
        })
    };
    let config = match trust {
        Trust::SystemRoots => builder.with_root_certificates(system_roots()?),
        Trust::Ca(pem) => builder.with_root_certificates(roots(pem)?),
        Trust::Fingerprint(fingerprint) => builder
            .dangerous()
            .with_custom_certificate_verifier(pinned(Some(*fingerprint))),
        Trust::Insecure => builder
            .dangerous()
            .with_custom_certificate_verifier(pinned(None)),
    };
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn roots(pem: &str) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| format!("ca: {error}"))?;
        store
            .add(certificate)
            .map_err(|error| format!("ca: {error}"))?;
    }
    if store.is_empty() {
        return Err("ca: no certificate in it".to_owned());
    }
    Ok(store)
}

fn system_roots() -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if store.is_empty() {
        return Err("this machine has no certificate store, give a ca or a fingerprint".to_owned());
    }
    Ok(store)
}

/// Trusts the certificate with this hash, or any; the handshake's signature is checked all the same, so that the
/// server is known to hold the certificate's key.
#[derive(Debug)]
struct Pinned {
    fingerprint: Option<[u8; 32]>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let digest: [u8; 32] = Sha256::digest(end_entity.as_ref()).into();
        match self.fingerprint {
            Some(wanted) if wanted != digest => Err(Error::InvalidCertificate(
                CertificateError::ApplicationVerificationFailure,
            )),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
