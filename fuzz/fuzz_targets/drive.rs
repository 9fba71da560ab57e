//! Drive strings of a VM's config.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| pve_client::oracles::drive(text));
