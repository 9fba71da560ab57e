//! pve-runtime
