//! pve-model
