//! The CSI node plugin: finds a volume's disk in the guest, formats, mounts and reports it, and makes itself
//! known to the kubelet.
//!
//! Two seams: the [`host::Host`] trait, behind which lie all system calls and programs, and the gRPC socket. It
//! knows no Proxmox endpoint and holds no credential of one: what it needs to know comes with the request, from
//! sysfs, or from its own Node object.

pub mod device;
mod device_number;
pub mod error;
pub mod expand;
pub mod ext4;
pub mod filesystem;
pub mod host;
mod host_error;
pub mod linux_host;
pub mod mounted;
pub mod mountinfo;
pub mod mountopts;
#[cfg(any(test, fuzzing))]
pub mod oracles;
pub mod place;
pub mod publish;
pub mod registration;
pub mod service;
pub mod stage;
pub mod topology;
pub mod unmount;
pub mod validate;
pub mod volume;

#[cfg(test)]
mod fake_host;
