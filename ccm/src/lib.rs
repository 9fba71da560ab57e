//! The cloud-controller-manager: Nodes of a tenant cluster whose workers are VMs of Proxmox VE.
