//! Volume handles, which anyone may write into a PersistentVolume.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| pve_model::oracles::volume_id(text));
