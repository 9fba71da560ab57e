//! What every program of this repository needs to run: configuration, credentials, a private gRPC
//! socket, keyed locks, work that outlives its request, telemetry, an admin port and signals.
//!
//! It is generic over tonic services: it knows neither Proxmox's API nor any CSI message.

pub mod active;
pub mod admin;
mod authority;
mod bounded;
pub mod config;
pub mod credentials;
pub mod keyed_lock;
pub mod process;
pub mod rpc;
pub mod server;
pub mod swap;
pub mod telemetry;
pub mod work;

pub use active::Active;
pub use config::{Config, ConfigError, EndpointConfig, RegionConfig, RegionPolicy};
pub use credentials::{CredentialError, Token, TokenConfig};
pub use keyed_lock::{Guard, KeyedLock, LockError};
pub use rpc::{CorrelationId, RpcMetrics};
pub use server::Socket;
pub use work::{Work, WorkError};
