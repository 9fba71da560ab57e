//! The two Helm charts: what they render, what they refuse, and both halves installed on a real Kubernetes.

mod agreement;
mod audit;
mod credentials;
mod flags;
mod helm;
mod images;
mod install;
mod objects;
mod pods;
mod readme;
mod refusals;
mod rights;
mod schema;
mod server;
mod site;
mod snapshots;

/// The values of `ci/` that each chart has.
pub(crate) const VALUES: [&str; 5] = ["default", "minimal", "full", "hardened", "cozystack"];
