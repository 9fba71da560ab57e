//! The production transport against a local TLS server: trust, limits, and PVE's habits on the wire.

use super::*;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::config::Trust;
use crate::metrics::Metrics;
use crate::{Client, Effect, ErrorKind};

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    fn server(&self, name: &str) -> (ServerConfig, [u8; 32]) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate: CertificateDer<'static> =
            params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let fingerprint = Sha256::digest(certificate.as_ref()).into();
        (server_config(certificate, &key), fingerprint)
    }
}

fn server_config(certificate: CertificateDer<'static>, key: &KeyPair) -> ServerConfig {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap()
}

/// Answers every connection's first request with these bytes and closes it, as PVE does after an error.
async fn serve(config: ServerConfig, answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            if let Ok(mut stream) = acceptor.accept(socket).await {
                let mut request = [0; 4096];
                if stream.read(&mut request).await.is_ok() {
                    drop(stream.write_all(&answer).await);
                    drop(stream.shutdown().await);
                }
            }
        }
    });
    url
}

const VERSION: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 45\r\n\r\n{\"data\":{\"version\":\"9.2.11\",\"release\":\"9.2\"}}";

fn client(url: &str, trust: Trust) -> Client {
    let mut config = crate::testing::config(&[url]);
    config.endpoints.first_mut().unwrap().trust = trust;
    config.timeouts.retry_window = Duration::ZERO;
    Client::new(config, Metrics::default()).unwrap()
}

#[tokio::test]
async fn the_right_ca_is_trusted_and_another_one_is_not() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let url = serve(ours.server("127.0.0.1").0, VERSION.into()).await;
    let version = client(&url, Trust::Ca(ours.pem.clone()))
        .version()
        .await
        .unwrap();
    assert_eq!(version.version, "9.2.11");
    let both = format!("{}{}", theirs.pem, ours.pem);
    client(&url, Trust::Ca(both)).version().await.unwrap();
    for trust in [Trust::Ca(theirs.pem), Trust::SystemRoots] {
        if matches!(trust, Trust::SystemRoots) && tls::config(&trust).is_err() {
            continue;
        }
        let error = client(&url, trust).version().await.unwrap_err();
        assert_eq!(
            (error.kind, error.effect),
            (ErrorKind::Unreachable, Effect::None)
        );
        assert!(error.detail.contains("certificate"), "{}", error.detail);
    }
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let authority = Authority::new();
    let url = serve(authority.server("pve1.example.test").0, VERSION.into()).await;
    let error = client(&url, Trust::Ca(authority.pem))
        .version()
        .await
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unreachable);
}

#[tokio::test]
async fn the_right_fingerprint_is_trusted_whatever_the_name_and_another_one_is_not() {
    let (config, fingerprint) = Authority::new().server("pve1.example.test");
    let url = serve(config, VERSION.into()).await;
    client(&url, Trust::Fingerprint(fingerprint))
        .version()
        .await
        .unwrap();
    client(&url, Trust::Insecure).version().await.unwrap();
    let mut other = fingerprint;
    *other.first_mut().unwrap() ^= 1;
    let error = client(&url, Trust::Fingerprint(other))
        .version()
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Unreachable, Effect::None)
    );
}

/// The certificate is public, the key is not: who only copied the certificate is not the server.
#[tokio::test]
async fn a_copied_certificate_without_its_key_is_refused() {
    let authority = Authority::new();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let copied = params
        .signed_by(&key, &authority.issuer)
        .unwrap()
        .der()
        .clone();
    let fingerprint = Sha256::digest(copied.as_ref()).into();
    let other_key = KeyPair::generate().unwrap();
    let provider = rustls::crypto::ring::default_provider();
    let der = PrivateKeyDer::try_from(other_key.serialize_der()).unwrap();
    let signing = provider.key_provider.load_private_key(der).unwrap();
    let forged = rustls::sign::CertifiedKey::new(vec![copied], signing);
    let config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(forged)));
    let url = serve(config, VERSION.into()).await;
    let error = client(&url, Trust::Fingerprint(fingerprint))
        .version()
        .await
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unreachable);
}

async fn answered(answer: &str) -> Client {
    let (config, fingerprint) = Authority::new().server("127.0.0.1");
    let url = serve(config, answer.as_bytes().to_vec()).await;
    client(&url, Trust::Fingerprint(fingerprint))
}

#[tokio::test]
async fn the_reason_phrase_of_a_bodiless_answer_is_heard() {
    let refused =
        answered("HTTP/1.1 401 Authentication failed!\r\nConnection: close\r\n\r\n").await;
    let error = refused.version().await.unwrap_err();
    assert_eq!(
        (error.kind, error.detail.as_str()),
        (ErrorKind::Unauthenticated, "Authentication failed!")
    );
    let dead = answered("HTTP/1.1 595 No route to host\r\nConnection: close\r\n\r\n").await;
    let error = dead.version().await.unwrap_err();
    assert_eq!(
        (error.kind, error.detail.as_str()),
        (ErrorKind::HostUnreachable, "No route to host")
    );
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let moved = answered(
        "HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    )
    .await;
    assert_eq!(
        moved.version().await.unwrap_err().kind,
        ErrorKind::Other { status: 302 }
    );
}

#[tokio::test]
async fn a_connection_that_breaks_after_the_request_leaves_a_write_open() {
    let broken = answered("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"data\":").await;
    let at = crate::StorageRef {
        pve_node: "pve1".parse().unwrap(),
        storage: "local".parse().unwrap(),
    };
    let disk = "vm-9999-a".parse().unwrap();
    let error = broken
        .allocate_disk(&at, &disk, pve_model::Bytes::GIB)
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::OutcomeUnknown, Effect::Possible)
    );
}

#[tokio::test]
async fn a_closed_port_is_known_as_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = client(&url, Trust::Insecure).version().await.unwrap_err();
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Unreachable, Effect::None)
    );
    assert!(error.detail.contains("refused"), "{}", error.detail);
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let (config, fingerprint) = Authority::new().server("127.0.0.1");
    let url = serve(config, VERSION.into()).await;
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls::config(&Trust::Fingerprint(fingerprint)).unwrap())
        .build()
        .unwrap();
    let bottom = Http {
        client,
        largest_body: 16,
    };
    let request = http::Request::get(format!("{url}/api2/json/version"))
        .body(Bytes::new())
        .unwrap();
    let error = bottom.oneshot(request).await.unwrap_err();
    let error = error.downcast::<TransportError>().unwrap();
    assert_eq!((error.phase, error.cause), (Phase::Sent, Cause::TooLarge));
}

#[test]
fn urls_are_taken_with_and_without_the_api_path_and_nothing_else() {
    for url in [
        "https://pve1:8006",
        "https://pve1:8006/",
        "https://pve1:8006/api2/json",
        " https://pve1:8006/api2/json/ ",
    ] {
        assert_eq!(base(0, url).unwrap(), "https://pve1:8006/api2/json");
    }
    assert_eq!(
        base(0, "https://[::1]:8006").unwrap(),
        "https://[::1]:8006/api2/json"
    );
    for bad in [
        "",
        "pve1",
        "http://pve1:8006",
        "https://",
        "https://u:p@pve1",
        "https://pve1/x",
        "https://pve1/?a=b",
        "https://pve1:x",
    ] {
        assert!(base(0, bad).is_err(), "{bad}");
    }
}

#[test]
fn a_ca_that_is_none_is_refused_at_start() {
    for pem in [
        "",
        "nonsense",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        assert!(tls::config(&Trust::Ca(pem.to_owned())).is_err(), "{pem}");
    }
}
