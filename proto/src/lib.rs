//! CSI 1.12 and the kubelet's plugin registration as Rust types, servers and clients.
//!
//! Owns the two interface files beside it and the rule that no message with secrets can be printed.

/// `csi.v1`: the Container Storage Interface.
pub mod csi {
    /// Version 1.
    #[expect(
        unused_qualifications,
        clippy::allow_attributes_without_reason,
        clippy::pedantic,
        reason = "generated code"
    )]
    pub mod v1 {
        tonic::include_proto!("csi.v1");
    }
}

/// The kubelet's plugin registration.
pub mod pluginregistration {
    #![expect(
        unused_qualifications,
        clippy::allow_attributes_without_reason,
        clippy::pedantic,
        reason = "generated code"
    )]
    tonic::include_proto!("pluginregistration");
}

mod redact;
