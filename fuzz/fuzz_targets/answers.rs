//! Bodies of PVE's answers, read by every reader.

#![no_main]

libfuzzer_sys::fuzz_target!(|body: &[u8]| pve_client::oracles::answer(body));
