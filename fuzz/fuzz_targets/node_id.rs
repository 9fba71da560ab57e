//! Node ids, which a tenant may write into its CSINode objects.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| pve_model::oracles::node_id(text));
