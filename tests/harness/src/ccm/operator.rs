//! What an administrator of Proxmox VE does through its API.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use pve_sim::{Builder, SimHandle};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const NAME: &str = "operator";
const SECRET: &str = "5f0c9c52-2a35-4c6c-9d0e-6a1f6f2c8e11";

/// Adds a token of `root@pam`.
pub fn administered(builder: Builder) -> Builder {
    builder.root_token(NAME, SECRET)
}

/// `POST` of a form to a path below `/api2/json`; what stands in `data`.
pub async fn post(sim: &SimHandle, path: &str, form: &str) -> Result<Value> {
    request(sim, "POST", path, form).await
}

/// Revokes an API token, `user@realm!name`.
pub async fn revoke(sim: &SimHandle, token: &str) -> Result<()> {
    let (user, name) = token.split_once('!').context("no token id")?;
    let path = format!("/access/users/{user}/token/{name}");
    request(sim, "DELETE", &path, "").await.map(drop)
}

/// `POST` to the simulator's own control API.
pub async fn control(sim: &SimHandle, path: &str) -> Result<Value> {
    let address = sim.control_url().trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "POST /_sim{path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    let end = stream.read_to_string(&mut answer).await;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .with_context(|| format!("POST {path}: {end:?}"))?;
    ensure!(head.starts_with("HTTP/1.1 200"), "POST {path}: {answer}");
    Ok(serde_json::from_str(body)?)
}

/// The system's view of the certificate is the one that the simulator began with.
async fn request(sim: &SimHandle, method: &str, path: &str, form: &str) -> Result<Value> {
    let address = sim.url().trim_start_matches("https://");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(sim.ca_pem().as_bytes())?)?;
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (host, _) = address.rsplit_once(':').context("no port")?;
    let name = ServerName::try_from(host.to_owned())?;
    let stream = TcpStream::connect(address).await?;
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, stream).await?;
    let request = format!(
        "{method} /api2/json{path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         authorization: PVEAPIToken=root@pam!{NAME}={SECRET}\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{form}",
        form.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    let end = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .with_context(|| format!("{method} {path}: {end:?}"))?;
    ensure!(
        head.starts_with("HTTP/1.1 200"),
        "{method} {path}: {answer}"
    );
    let body: Value = serde_json::from_str(body)?;
    Ok(body.get("data").cloned().unwrap_or_default())
}
