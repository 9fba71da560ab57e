//! What stands between a program and a server: a line that can be cut, or go dead.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::world::free_port;

/// How the line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// It carries.
    Open,
    /// What is sent arrives nowhere, and nobody says so.
    Dead,
    /// Connections end, and nobody listens.
    Cut,
}

/// A port that leads to another one.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    line: Arc<watch::Sender<Line>>,
    task: JoinHandle<()>,
}

impl Relay {
    /// A port of 127.0.0.1 that leads to this one.
    pub fn to(target: SocketAddr, line: Line) -> Result<Self> {
        let address = free_port()?;
        let line = Arc::new(watch::Sender::new(line));
        let task = tokio::spawn(serve(address, target, Arc::clone(&line)));
        Ok(Self {
            address,
            line,
            task,
        })
    }

    /// Changes how the line is.
    pub fn set(&self, line: Line) {
        self.line.send_replace(line);
    }

    /// A copy of a kubeconfig that leads here, as `<name>.kubeconfig` beside it, and the relay.
    pub fn of_kubeconfig(kubeconfig: &Path, name: &str, line: Line) -> Result<(Self, PathBuf)> {
        let mut config: Value = serde_json::from_slice(&std::fs::read(kubeconfig)?)?;
        let server = config
            .pointer_mut("/clusters/0/cluster/server")
            .context("the kubeconfig names no server")?;
        let target = server.as_str().and_then(|url| url.strip_prefix("https://"));
        let relay = Self::to(target.context("the server is no URL")?.parse()?, line)?;
        *server = json!(format!("https://{}", relay.address));
        let path = kubeconfig.with_file_name(format!("{name}.kubeconfig"));
        std::fs::write(&path, config.to_string())?;
        Ok((relay, path))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(address: SocketAddr, target: SocketAddr, line: Arc<watch::Sender<Line>>) {
    let mut changes = line.subscribe();
    loop {
        if changes.wait_for(|line| *line != Line::Cut).await.is_err() {
            return;
        }
        let Ok(listener) = TcpListener::bind(address).await else {
            return;
        };
        let mut cut = line.subscribe();
        loop {
            tokio::select! {
                _ = cut.wait_for(|line| *line == Line::Cut) => break,
                accepted = listener.accept() => {
                    if let Ok((stream, _)) = accepted {
                        tokio::spawn(carry(stream, target, line.subscribe()));
                    }
                }
            }
        }
    }
}

/// Carries while the line is open, and holds the connection without a word while it is dead. One over which something may
/// have been lost ends when the line is open again.
async fn carry(mut near: TcpStream, target: SocketAddr, mut line: watch::Receiver<Line>) {
    if line.wait_for(|line| *line != Line::Dead).await.is_err() {
        return;
    }
    let Ok(mut far) = TcpStream::connect(target).await else {
        return;
    };
    tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => return,
        _ = line.wait_for(|line| *line != Line::Open) => {}
    }
    drop(line.wait_for(|line| *line != Line::Dead).await);
}
