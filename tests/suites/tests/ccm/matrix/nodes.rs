//! The Nodes of a world, what must hold of each, and the count of what did not.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use futures_util::future::try_join_all;
use harness::ccm::{CcmWorld, Node, has_taint};
use harness::cluster::eventually;
use harness::world::{POOL, uuid};
use pve_model::topology::{SHUTDOWN_TAINT, UNINITIALIZED_TAINT, ZONE};
use pve_sim::{SimHandle, State, Vm};
use serde_json::{Value, json};
use tokio::time::{Duration, sleep};

use super::{DWELL, Outcome};

/// What must hold of a Node.
#[derive(Clone, Copy)]
pub(super) enum Must {
    /// It says what it said before the fault, changed so.
    Say(fn(&mut Value)),
    /// It has its taint of initialisation still.
    Wait,
    /// It is initialised; whether it has the taint of a VM that is shut down.
    Come { shut_down: bool },
    /// It is deleted.
    End,
}

/// It is initialised.
pub(super) const COME: Must = Must::Come { shut_down: false };

/// A world with the Nodes that were registered in it.
pub(super) struct Matrix {
    pub(super) world: CcmWorld,
    known: BTreeMap<u32, Known>,
    cases: usize,
    wrong: BTreeSet<u32>,
    problems: Vec<String>,
}

struct Known {
    uid: String,
    /// What it said when it was last right.
    said: Value,
    /// Its VM is proved to be gone.
    may_end: bool,
}

/// Name of the Node of a VM.
pub(super) fn name(vmid: u32) -> String {
    format!("worker-{vmid}")
}

/// What a Node says, as far as controllers of clouds write it.
fn said(node: &Node) -> Value {
    let spec = node.spec.clone().unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    let taints: BTreeSet<String> = spec.taints.into_iter().flatten().map(|t| t.key).collect();
    json!({
        "labels": node.metadata.labels,
        "annotations": node.metadata.annotations,
        "providerID": spec.provider_id,
        "taints": taints,
        "addresses": status.addresses,
    })
}

/// What is logged when the VM of a Node was seen to be gone for the first time.
const DECIDED: &str = "the VM of the Node is gone";

impl Matrix {
    pub(super) fn new(world: CcmWorld) -> Self {
        Self {
            world,
            known: BTreeMap::new(),
            cases: 0,
            wrong: BTreeSet::new(),
            problems: Vec::new(),
        }
    }

    /// The PVE cluster of a VM: those from 5000 on are in the second one.
    pub(super) fn sim(&self, vmid: u32) -> &SimHandle {
        let second = self.world.regions.get(1).filter(|_| vmid >= 5000);
        second.map_or(self.world.sim(), |(_, sim)| sim)
    }

    /// Registers the Nodes of these VMs, ready or not.
    pub(super) async fn register(&mut self, vmids: &[u32], ready: bool) -> Result<()> {
        let world = &self.world;
        let all = vmids.iter().map(|vmid| async move {
            let name = name(*vmid);
            world.register(&name, *vmid).await?;
            if !ready {
                world.set_ready(&name, false).await?;
            }
            let node = world.node(&name).await?.context("it was just registered")?;
            let known = Known {
                uid: node.metadata.uid.clone().unwrap_or_default(),
                said: said(&node),
                may_end: false,
            };
            anyhow::Ok((*vmid, known))
        });
        let all = try_join_all(all).await?;
        self.known.extend(all);
        Ok(())
    }

    /// Registers them and waits until they are initialised.
    pub(super) async fn settle(&mut self, vmids: &[u32]) -> Result<()> {
        self.register(vmids, true).await?;
        self.initialised(vmids).await?;
        // What needs a second look: labels of HA.
        sleep(Duration::from_secs(1)).await;
        for vmid in vmids {
            self.remember(*vmid).await?;
        }
        Ok(())
    }

    async fn remember(&mut self, vmid: u32) -> Result<()> {
        let node = self.world.node(&name(vmid)).await?;
        let said = node.as_ref().map(said);
        let known = self.known.get_mut(&vmid).context("it is registered")?;
        known.said = said.context("it is there")?;
        Ok(())
    }

    /// Waits until these are initialised.
    pub(super) async fn initialised(&self, vmids: &[u32]) -> Result<()> {
        try_join_all(
            vmids
                .iter()
                .map(async |vmid| self.world.initialised(&name(*vmid)).await),
        )
        .await?;
        Ok(())
    }

    /// Kubelets of these fall silent.
    pub(super) async fn unready(&self, vmids: &[u32]) -> Result<()> {
        let all = vmids
            .iter()
            .map(async |vmid| self.world.set_ready(&name(*vmid), false).await);
        try_join_all(all).await?;
        Ok(())
    }

    /// Waits until a PVE cluster was listed twice from now on.
    pub(super) async fn listed(&self, sim: &SimHandle) -> Result<()> {
        let count = || {
            let counts = sim.request_counts();
            counts.get("GET /cluster/resources").copied().unwrap_or(0)
        };
        let before = count();
        eventually("two lists", Duration::from_secs(30), async || {
            Ok((count() >= before + 2).then_some(()))
        })
        .await?;
        Ok(())
    }

    /// Lets a fault last.
    pub(super) async fn dwell(&self) {
        sleep(DWELL).await;
    }

    /// Looks at each of these Nodes; each is a case.
    pub(super) async fn check(&mut self, sentence: &str, rows: &[(u32, Must)]) -> Result<()> {
        let nodes = self.census(sentence).await?;
        self.decisions(sentence);
        for (vmid, must) in rows {
            self.cases += 1;
            let node = nodes.get(&name(*vmid));
            if let Some(problem) = self.problem(*vmid, *must, node) {
                self.problems
                    .push(format!("{sentence}: {}: {problem}", name(*vmid)));
            }
        }
        Ok(())
    }

    /// The Nodes. Each that is missing, or is another one, was wrongly deleted unless its VM is proved to be gone.
    async fn census(&mut self, sentence: &str) -> Result<BTreeMap<String, Node>> {
        let listed = self.world.all_nodes().await?;
        let nodes: BTreeMap<String, Node> = listed
            .into_iter()
            .map(|node| (node.metadata.name.clone().unwrap_or_default(), node))
            .collect();
        for (vmid, known) in &self.known {
            let node = nodes.get(&name(*vmid));
            let is_there = node.is_some_and(|node| node.metadata.uid.as_ref() == Some(&known.uid));
            if !is_there && !known.may_end && self.wrong.insert(*vmid) {
                let name = name(*vmid);
                self.problems
                    .push(format!("{sentence}: {name} was deleted"));
            }
        }
        Ok(nodes)
    }

    /// Deletions are slowed down: one that was wrongly decided on may not be done yet.
    fn decisions(&mut self, sentence: &str) {
        let log = self.world.logs();
        let decided = log.lines().filter(|line| line.contains(DECIDED));
        let decided: Vec<&str> = decided.collect();
        for (vmid, _) in self.known.iter().filter(|(_, known)| !known.may_end) {
            let name = name(*vmid);
            if decided.iter().any(|line| line.contains(&name)) && self.wrong.insert(*vmid) {
                let problem = format!("{sentence}: {name} was to be deleted");
                self.problems.push(problem);
            }
        }
    }

    fn is_decided(&self, vmid: u32) -> bool {
        let (log, name) = (self.world.logs(), name(vmid));
        let decided = |line: &str| line.contains(DECIDED) && line.contains(&name);
        log.lines().any(decided)
    }

    fn problem(&self, vmid: u32, must: Must, node: Option<&Node>) -> Option<String> {
        let Some(node) = node else {
            let ends = matches!(must, Must::End);
            return (!ends).then(|| "it is not there".to_owned());
        };
        let said = said(node);
        let shut_down = has_taint(node, SHUTDOWN_TAINT);
        let tainted = has_taint(node, UNINITIALIZED_TAINT);
        let right = match must {
            // Deletions are slowed down.
            Must::End => self.is_decided(vmid),
            Must::Wait => tainted && !shut_down,
            Must::Say(change) => {
                let known = self.known.get(&vmid)?;
                let mut wanted = known.said.clone();
                change(&mut wanted);
                if wanted != said {
                    return Some(format!("it says {said}\nand should say {wanted}"));
                }
                true
            }
            Must::Come { shut_down: wanted } => {
                let host = self
                    .sim(vmid)
                    .state()
                    .vms
                    .get(&vmid)
                    .map(|vm| vm.node.clone());
                let id = format!("proxmox://{}", uuid(vmid));
                let is_placed = host.is_none() || said["labels"][ZONE] == json!(host);
                !tainted && shut_down == wanted && said["providerID"] == json!(id) && is_placed
            }
        };
        (!right).then(|| format!("it says {said}"))
    }

    /// After a fault: those that waited come, those whose VM is gone end, all others say what they said before.
    pub(super) async fn right_again(
        &mut self,
        sentence: &str,
        same: &[u32],
        come: &[u32],
        end: &[u32],
    ) -> Result<()> {
        for vmid in end {
            self.may_end(*vmid);
        }
        let waits = self.initialised(come).await;
        let ends = try_join_all(
            end.iter()
                .map(async |vmid| self.world.deleted(&name(*vmid)).await),
        )
        .await;
        let outcomes = [waits.err(), ends.map(|_| ()).err()];
        for error in outcomes.into_iter().flatten() {
            self.problems.push(format!("after {sentence}: {error:#}"));
        }
        let nodes = self.until_same(same).await?;
        for (vmid, must) in same.iter().map(|vmid| (*vmid, Must::Say(super::same))) {
            if let Some(problem) = self.problem(vmid, must, nodes.get(&name(vmid))) {
                self.problems
                    .push(format!("after {sentence}: {}: {problem}", name(vmid)));
            }
        }
        self.census(&format!("after {sentence}")).await?;
        Ok(())
    }

    async fn until_same(&mut self, same: &[u32]) -> Result<BTreeMap<String, Node>> {
        let mut tries = 0;
        loop {
            let nodes = self.census("after a fault").await?;
            let is_wrong = |vmid: &u32| {
                let node = nodes.get(&name(*vmid));
                self.problem(*vmid, Must::Say(super::same), node).is_some()
            };
            tries += 1;
            if tries > 20 || !same.iter().any(is_wrong) {
                return Ok(nodes);
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// The VM of this Node is gone, which is or can be proved.
    pub(super) fn may_end(&mut self, vmid: u32) {
        if let Some(known) = self.known.get_mut(&vmid) {
            known.may_end = true;
        }
    }

    /// Ends the world and says what came of it.
    pub(super) async fn finish(mut self) -> Result<Outcome> {
        self.census("at the end").await?;
        self.decisions("at the end");
        self.world.stop().await?;
        Ok(Outcome {
            cases: self.cases,
            wrong: self.wrong.len(),
            problems: self.problems,
        })
    }
}

/// A worker of that number on that host, in the tenant's pool.
pub(super) fn worker(state: &mut State, vmid: u32, host: &str) {
    let config = [
        ("name", name(vmid)),
        ("memory", "2048".to_owned()),
        ("cores", "2".to_owned()),
        ("smbios1", format!("uuid={}", uuid(vmid))),
    ];
    let vm = Vm {
        node: host.to_owned(),
        config: config.map(|(key, text)| (key.to_owned(), text)).into(),
        running: true,
        ..Vm::default()
    };
    state.vms.insert(vmid, vm);
    if let Some(pool) = state.pools.get_mut(POOL) {
        pool.vms.insert(vmid);
    }
}
