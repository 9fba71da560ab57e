//! The cloud-controller-manager between a real API server and a simulated PVE cluster.

mod addresses;
mod budget;
mod capmox;
mod hosts;
mod initialise;
mod matrix;
mod outcomes;
mod process;
mod quiet;
mod replicas;
mod scale;

/// One world in this binary at a time: each fills two cores while it starts, and what is measured is measured alone.
pub(crate) async fn alone() -> tokio::sync::MutexGuard<'static, ()> {
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    ALONE.lock().await
}
