//! The whole plugin on real block devices, through its socket. Needs root; says so where it can't run.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests fail by panics, and run programs as an administrator would"
)]

mod apart;
mod blank_or_not;
mod detach;
mod disk;
mod expand;
mod interrupted;
mod life;
mod machine;
mod refused;
mod start;
