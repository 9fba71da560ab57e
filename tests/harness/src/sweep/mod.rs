//! The sweep: every RPC of the controller, at every request that it makes, with every fault; then called again as the
//! sidecars do, and judged by what the simulated cluster really holds.
//!
//! A [`Lane`] is one simulator with one controller that serves many cases, one after the other; lanes run in parallel.

pub mod change;
pub mod death;
pub mod fault;
pub mod invariants;
pub mod lane;
pub mod lives;
pub mod pair;
pub mod sidecar;
pub mod single;
pub mod tally;
pub mod volume;

pub use change::Change;
pub use fault::Fault;
pub use invariants::Stage;
pub use lane::Lane;
pub use tally::Tally;
pub use volume::{Answer, Rpc, Volume};
