//! Sends what was once asked of a real PVE to the simulator, in the same order and from the same start, and compares what comes
//! back.

mod normal;
mod wire;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

use crate::process::{Process, built};
use wire::{Reply, Send, Server};

/// What a request took on the recorded host on the mean; the clock moves on by it before each one.
const STEP: Duration = Duration::from_millis(30);
/// The record begins so long after the daemon that tells the cluster about VMs told last; it does so every 10 s.
const PHASE: Duration = Duration::from_secs(4);
/// No answer and no task takes longer than this, on the test's clock.
const LIMIT: Duration = Duration::from_secs(20);

/// An answer that needs the clock to move although the recorded one was quick gets it after this time on the test's clock.
const PATIENCE: Duration = Duration::from_secs(2);

/// Tokens by the name under which the record's requests were sent.
const TOKENS: &[(&str, &str)] = &[
    ("root", "root@pam!full=11111111-1111-1111-1111-111111111111"),
    (
        "rootsep",
        "root@pam!sep=11111111-1111-1111-1111-222222222222",
    ),
    (
        "rootexp",
        "root@pam!expired=11111111-1111-1111-1111-333333333333",
    ),
    (
        "csifull",
        "csi@pve!full=22222222-2222-2222-2222-111111111111",
    ),
    ("csisep", "csi@pve!sep=22222222-2222-2222-2222-222222222222"),
    (
        "csinone",
        "csi@pve!none=22222222-2222-2222-2222-333333333333",
    ),
    (
        "nobody",
        "nobody@pve!full=33333333-3333-3333-3333-111111111111",
    ),
    ("off", "off@pve!full=44444444-4444-4444-4444-111111111111"),
    (
        "audit",
        "audit@pve!full=55555555-5555-5555-5555-111111111111",
    ),
    (
        "root@pam!full",
        "root@pam!full=00000000-0000-0000-0000-000000000000",
    ),
];

/// One request and what PVE answered.
#[derive(Debug, Clone, Deserialize)]
pub struct Exchange {
    /// Its number in the record.
    pub n: u64,
    /// Who asked: a name of [`TOKENS`], `no auth`, or a credential as it stands.
    #[serde(rename = "as")]
    caller: String,
    method: String,
    path: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    form: Option<String>,
    json: Option<String>,
    raw: Option<String>,
    content_type: Option<String>,
    status: u16,
    reason: Option<String>,
    body: Option<Value>,
    #[serde(default)]
    text: String,
    /// How long the answer took, if it was 2 s or more.
    #[serde(default)]
    seconds: f64,
}

/// An answer that was not the recorded one.
#[derive(Debug, Clone)]
pub struct Difference {
    pub n: u64,
    /// The request and both answers in normal form.
    pub what: String,
}

/// Reads a record: one exchange a line.
pub fn read(text: &str) -> Result<Vec<Exchange>> {
    text.lines()
        .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
        .collect()
}

/// Status, reason and body of an answer, in normal form.
#[derive(Debug, PartialEq)]
struct Normal {
    status: u16,
    reason: String,
    body: Value,
}

impl Exchange {
    fn wanted(&self) -> Result<Normal> {
        Ok(Normal {
            status: self.status,
            reason: normal::text(self.reason.as_deref().unwrap_or_default())?,
            body: match &self.body {
                Some(body) => normal::json(body, None)?,
                None => Value::from(normal::text(&self.text)?),
            },
        })
    }

    /// The request, with the UPIDs of this run in place of the recorded ones.
    fn request(&self, upids: &BTreeMap<u64, String>) -> Send {
        let mut headers: Vec<(String, String)> = self.headers.clone().into_iter().collect();
        if self.caller != "no auth" {
            let known = TOKENS.iter().find(|(name, _)| *name == self.caller);
            let credential = known.map_or(self.caller.as_str(), |(_, token)| token);
            headers.push(("Authorization".into(), format!("PVEAPIToken={credential}")));
        }
        let form = "application/x-www-form-urlencoded";
        let typed = |body: &Option<String>, kind: &str| Some((body.clone()?, kind.to_owned()));
        let raw_type = self.content_type.as_deref().unwrap_or(form);
        let body = typed(&self.form, form)
            .or_else(|| typed(&self.json, "application/json"))
            .or_else(|| typed(&self.raw, raw_type));
        if let Some((_, kind)) = &body {
            headers.push(("Content-Type".into(), kind.clone()));
        }
        Send {
            method: self.method.clone(),
            target: filled(&self.path, upids),
            headers,
            body: body.map(|(text, _)| text),
        }
    }
}

/// Puts the UPIDs of this run into `{upid:7}` and `{upid-encoded:7}`.
fn filled(path: &str, upids: &BTreeMap<u64, String>) -> String {
    let put = |path: String, (n, upid): (&u64, &String)| {
        let encoded = utf8_percent_encode(upid, NON_ALPHANUMERIC).to_string();
        path.replace(&format!("{{upid:{n}}}"), upid)
            .replace(&format!("{{upid-encoded:{n}}}"), &encoded)
    };
    upids.iter().fold(path.to_owned(), put)
}

fn as_normal(reply: &Reply) -> Result<Normal> {
    Ok(Normal {
        status: reply.status,
        reason: normal::text(&reply.reason)?,
        body: match serde_json::from_str::<Value>(&reply.body) {
            Ok(body) => normal::json(&body, None)?,
            Err(_) => Value::from(normal::text(&reply.body)?),
        },
    })
}

/// The simulator as a program in the record's start, with a clock that this test moves.
#[derive(Debug)]
pub struct Player {
    /// Ended when dropped.
    _process: Process,
    api: Server,
    control: Server,
    upids: BTreeMap<u64, String>,
}

impl Player {
    /// Starts `pve-sim --state <scenario>`; its files and its log lie in `folder`.
    pub async fn start(scenario: &Path, folder: &Path) -> Result<Self> {
        let (ports, ca) = (folder.join("ports.json"), folder.join("ca.pem"));
        let shown = |path: &Path| path.display().to_string();
        let args = [
            "--state".to_owned(),
            shown(scenario),
            "--ca-out".to_owned(),
            shown(&ca),
            "--port-file".to_owned(),
            shown(&ports),
            "--timing".to_owned(),
            "zero".to_owned(),
            "--stepped-clock".to_owned(),
        ];
        let mut process = Process::start("pve-sim", &built("pve-sim")?, &args, folder)?;
        process.ready(LIMIT, async || ports.is_file()).await?;
        let ports: Value = serde_json::from_str(&std::fs::read_to_string(&ports)?)?;
        let url = |key: &str| ports.get(key).and_then(Value::as_str).context("no address");
        Ok(Self {
            api: Server::new(url("url")?, Some(&ca))?,
            control: Server::new(url("control")?, None)?,
            _process: process,
            upids: BTreeMap::new(),
        })
    }

    /// Sends everything, waits for each task, and returns where the answers differ.
    pub async fn play(&mut self, record: &[Exchange]) -> Result<Vec<Difference>> {
        let mut differences = Vec::new();
        self.advance_by(PHASE).await?;
        for exchange in record {
            let context = || format!("request {}", exchange.n);
            differences.extend(Box::pin(self.one(exchange)).await.with_context(context)?);
        }
        Ok(differences)
    }

    async fn one(&mut self, exchange: &Exchange) -> Result<Option<Difference>> {
        self.advance_by(STEP).await?;
        let request = exchange.request(&self.upids);
        let reply = Box::pin(self.answer(&request, exchange.seconds)).await?;
        let upid = serde_json::from_str::<Value>(&reply.body)
            .ok()
            .and_then(|body| body.get("data")?.as_str().map(str::to_owned))
            .filter(|data| data.starts_with("UPID:"));
        if let Some(upid) = upid {
            self.ended(&upid).await?;
            self.upids.insert(exchange.n, upid);
        }
        let (want, have) = (exchange.wanted()?, as_normal(&reply)?);
        Ok((want != have).then(|| Difference {
            n: exchange.n,
            what: format!(
                "{} {} as {}\n  want {want:?}\n  have {have:?}",
                request.method, request.target, exchange.caller
            ),
        }))
    }

    /// The answer to a request that may take so many seconds of the simulator's clock.
    async fn answer(&self, request: &Send, seconds: f64) -> Result<Reply> {
        let waiting = async {
            if seconds > 0.0 {
                // The request is to be there before the clock moves.
                tokio::time::sleep(Duration::from_millis(20)).await;
                self.advance_by(Duration::from_secs_f64(seconds)).await?;
            }
            tokio::time::sleep(PATIENCE).await;
            for _ in 0..120 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                self.advance_by(Duration::from_millis(500)).await?;
            }
            std::future::pending().await
        };
        tokio::select! {
            biased;
            reply = self.api.send(request) => reply,
            failed = waiting => failed,
            () = tokio::time::sleep(LIMIT) => bail!("no answer"),
        }
    }

    /// Waits for the end of a task, asking as root.
    async fn ended(&self, upid: &str) -> Result<()> {
        let node = upid.split(':').nth(1).unwrap_or_default();
        let encoded = utf8_percent_encode(upid, NON_ALPHANUMERIC);
        let root = TOKENS.first().map(|(_, token)| *token).unwrap_or_default();
        let request = Send {
            method: "GET".into(),
            target: format!("/api2/json/nodes/{node}/tasks/{encoded}/status"),
            headers: vec![("Authorization".into(), format!("PVEAPIToken={root}"))],
            body: None,
        };
        let poll = async {
            loop {
                let reply = self.api.send(&request).await?;
                let body: Value = serde_json::from_str(&reply.body).unwrap_or_default();
                if body.pointer("/data/status").and_then(Value::as_str) != Some("running") {
                    return Ok(());
                }
                self.advance_by(STEP).await?;
            }
        };
        timeout(LIMIT, poll)
            .await
            .context("the task does not end")?
    }

    async fn advance_by(&self, time: Duration) -> Result<()> {
        let ms = time.as_millis();
        let request = Send {
            method: "POST".into(),
            target: "/_sim/clock".into(),
            headers: Vec::new(),
            body: Some(format!("{{\"advance_ms\":{ms}}}")),
        };
        let reply = self.control.send(&request).await?;
        if reply.status == 200 {
            Ok(())
        } else {
            bail!("the clock does not move: {reply:?}")
        }
    }
}
