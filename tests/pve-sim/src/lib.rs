//! pve-sim
