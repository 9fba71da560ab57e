//! Provider ids, which the kubelet or a tenant may write into Nodes.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| pve_model::oracles::provider_id(text));
