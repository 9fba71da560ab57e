//! pve-client
