//! The operator's config and policy file.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| pve_runtime::config::oracles::operator_config(text));
