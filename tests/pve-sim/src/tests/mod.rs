//! Tests that go through the whole way of a request, without sockets.

mod access;
mod agent;
mod config;
mod content;
mod faults;
mod ha;
mod hosts;
mod hotplug;
mod keep;
mod leftovers;
mod login;
mod migrates;
mod moves;
mod older;
mod quorum;
mod rights;
mod shapes;
mod storages;
mod tasks;
mod wire;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::builder::{StorageOptions, TokenGrant};
use crate::http::{Reply, Request, form};
use crate::{Builder, SimHandle, Timing, dispatch};

pub(super) const SECRET: &str = "11111111-1111-1111-1111-111111111111";
pub(super) const ROOT: &str = "root@pam!full";

/// A simulator with `pve1` and `pve2`, storages `local` and `thin` and VM 100 on `pve1`.
pub(super) struct World {
    pub(super) sim: SimHandle,
}

pub(super) fn cluster() -> Builder {
    crate::Sim::builder()
        .node("pve1")
        .node("pve2")
        .storage_dir("local", StorageOptions::default())
        .storage_lvmthin("thin", StorageOptions::default())
        .storage_dir(
            "shared",
            StorageOptions {
                shared: true,
                total: 0,
            },
        )
        .vm(100, "pve1", "worker-a")
        .vm(101, "pve2", "worker-b")
        .volume("local", Some("pve1"), "9999/vm-9999-a.raw", 1 << 30)
        .volume("local", Some("pve1"), "9999/vm-9999-b.raw", 1 << 30)
        .volume("local", Some("pve1"), "100/vm-100-disk-0.raw", 1 << 30)
        .volume("shared", None, "9999/vm-9999-s.raw", 1 << 30)
        .root_token("full", SECRET)
        .timing(Timing::ZERO)
}

pub(super) fn grant(id: &str, privsep: bool, roles: &[(&str, &str)]) -> TokenGrant {
    let roles = roles
        .iter()
        .map(|(path, role)| ((*path).to_owned(), (*role).to_owned()))
        .collect();
    TokenGrant {
        id: id.to_owned(),
        secret: SECRET.to_owned(),
        privsep,
        roles,
    }
}

impl World {
    pub(super) async fn new(builder: Builder) -> Self {
        Self {
            sim: builder.start().await.unwrap(),
        }
    }

    pub(super) async fn send(
        &self,
        who: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> Option<Reply> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let raw_path = format!("/api2/json{}", form::unescape(path));
        let request = Request {
            method: method.to_owned(),
            path: raw_path
                .split('/')
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect(),
            raw_path,
            query: form::decode(query),
            authorization: (!who.is_empty()).then(|| format!("PVEAPIToken={who}={SECRET}")),
            cookie: None,
            csrf: None,
            content_type: Some("application/x-www-form-urlencoded".to_owned()),
            chunked: false,
            body: body
                .replace(',', "%2C")
                .replace("raw=", "raw%3D")
                .into_bytes(),
        };
        dispatch::answer(Arc::clone(&self.sim.sim), "pve1".to_owned(), request).await
    }

    /// Status and body of a request of the given caller.
    pub(super) async fn call_as(
        &self,
        who: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> (u16, Value) {
        let reply = self.send(who, method, path, body).await.unwrap();
        let value = reply
            .body
            .map(|(_, bytes)| serde_json::from_slice(&bytes).unwrap_or_default());
        (reply.status, value.unwrap_or_default())
    }

    pub(super) async fn call(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        self.call_as(ROOT, method, path, body).await
    }

    /// Data of a request of root that must succeed.
    pub(super) async fn ok(&self, method: &str, path: &str, body: &str) -> Value {
        let (status, value) = self.call(method, path, body).await;
        assert_eq!(status, 200, "{method} {path} {body}: {value}");
        value["data"].clone()
    }

    /// Waits for a task and returns its end state.
    pub(super) async fn exit(&self, upid: &Value) -> String {
        let upid = upid.as_str().unwrap();
        crate::tasks::wait(&self.sim.sim, upid, Duration::from_mins(1))
            .await
            .unwrap()
    }

    pub(super) async fn config(&self, query: &str) -> Value {
        self.ok("GET", &format!("/nodes/pve1/qemu/100/config{query}"), "")
            .await
    }

    pub(super) async fn put(&self, body: &str) -> (u16, Value) {
        self.call("PUT", "/nodes/pve1/qemu/100/config", body).await
    }

    /// The row of a key in `/pending`.
    pub(super) async fn pending(&self, key: &str) -> Value {
        let rows = self.ok("GET", "/nodes/pve1/qemu/100/pending", "").await;
        rows.as_array()
            .unwrap()
            .iter()
            .find(|row| row["key"] == key)
            .cloned()
            .unwrap_or_default()
    }

    /// Slots in `blockstat`.
    pub(super) async fn blockstat(&self) -> Vec<String> {
        let current = self
            .ok("GET", "/nodes/pve1/qemu/100/status/current", "")
            .await;
        current["blockstat"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    }
}
