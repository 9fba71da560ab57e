//! Client certificates: an authority for them that comes and goes while the API server runs.

use std::path::Path;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{
    CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
};
use serde_json::json;

use super::pki::authority;

/// Signs client certificates.
pub struct ClientAuthority(CertifiedIssuer<'static, KeyPair>);

/// A client certificate and its key, as PEM.
#[derive(Clone)]
pub struct ClientCertificate {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl std::fmt::Debug for ClientAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClientAuthority")
    }
}

impl std::fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClientCertificate")
    }
}

impl ClientAuthority {
    /// One of a name of its own: a verifier finds authorities by their names.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = authority();
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self(issuer))
    }

    /// Its certificate.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for a user of that name in that group (RFC 5280 subject: CN and O).
    pub fn certificate(&self, user: &str, group: &str) -> Result<ClientCertificate> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        let organization = DnType::OrganizationName;
        params.distinguished_name.push(organization, group);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?;
        Ok(ClientCertificate {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

pub(super) fn kubeconfig(server: &str, ca: &Path, client: &ClientCertificate) -> Result<String> {
    let ca = BASE64.encode(std::fs::read(ca)?);
    let cluster = json!({ "server": server, "certificate-authority-data": ca });
    let user = json!({
        "client-certificate-data": BASE64.encode(&client.certificate),
        "client-key-data": BASE64.encode(&client.key),
    });
    let context = json!({ "cluster": "tenant", "user": "super-admin" });
    let file = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "super-admin@tenant",
        "clusters": [{ "name": "tenant", "cluster": cluster }],
        "users": [{ "name": "super-admin", "user": user }],
        "contexts": [{ "name": "super-admin@tenant", "context": context }],
    });
    Ok(file.to_string())
}
