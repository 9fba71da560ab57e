//! The kernel's mount table. The node plugin's reader is built from its files: the crate would bring all of Kubernetes.

#![no_main]

#[path = "../../csi-node/src/device_number.rs"]
mod device_number;
#[path = "../../csi-node/src/mountinfo.rs"]
mod mountinfo;
#[path = "../../csi-node/src/oracles.rs"]
mod oracles;

libfuzzer_sys::fuzz_target!(|table: &[u8]| oracles::mountinfo(table));
