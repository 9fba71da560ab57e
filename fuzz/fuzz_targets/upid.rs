//! Names of PVE's tasks.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| pve_client::oracles::upid(text));
