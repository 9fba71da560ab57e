//! Bad input to the node plugin: a clear code and message, and neither disk, mount nor file is touched.

#![expect(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "tests fail by panics, and a table is as long as it is"
)]

mod expand;
mod publish;
mod stage;
mod worker;
