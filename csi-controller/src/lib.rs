//! pve-csi-controller
