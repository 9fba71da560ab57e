//! pve-csi-node
