//! Two PVE clusters, a 9 and an 8: one of them is down, or tells nothing of HA.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use harness::ccm::CcmWorld;
use pve_model::topology::{HA_GROUP_PREFIX, HA_STRICT_PREFIX};
use pve_sim::{HaRule, RequestEffect, RequestFault, SimHandle, State};
use serde_json::{Value, json};

use super::nodes::{COME, Matrix, Must, worker};
use super::{granted, same};

/// Where HA is asked for: rules on 9, groups and their members on 8.
const HA: [&str; 3] = [
    "/cluster/ha/rules",
    "/cluster/ha/groups",
    "/cluster/ha/resources",
];

/// Four VMs in each PVE cluster: two of Nodes that are there before, two of Nodes that register meanwhile; the second of
/// each is not ready. And one that is destroyed meanwhile.
#[derive(Clone, Copy)]
struct Vms(u32);

/// In the 9 and in the 8.
const CLUSTERS: [u32; 2] = [3000, 5000];

impl Vms {
    fn before(self) -> Vec<u32> {
        CLUSTERS
            .map(|first| [first + self.0, first + self.0 + 1])
            .concat()
    }

    fn fresh(self) -> [u32; 2] {
        CLUSTERS.map(|first| first + self.0 + 2)
    }

    fn fresh_unready(self) -> [u32; 2] {
        CLUSTERS.map(|first| first + self.0 + 3)
    }

    fn destroyed(self) -> [u32; 2] {
        CLUSTERS.map(|first| first + self.0 + 4)
    }

    fn all(self) -> Vec<u32> {
        let all = [self.fresh(), self.fresh_unready(), self.destroyed()].concat();
        [self.before(), all].concat()
    }
}

/// HA answers; it refuses; it fails; one PVE cluster is down.
const PHASES: [Vms; 4] = [Vms(0), Vms(10), Vms(20), Vms(30)];

/// Makes both clusters what they are.
pub(super) fn prepare(world: &CcmWorld) -> Result<()> {
    let second = &world.regions.get(1).context("there are two")?.1;
    second.edit(|state| state.version = "8.4.1".parse().unwrap_or_default());
    for (first, sim) in CLUSTERS.iter().zip([world.sim(), second]) {
        sim.edit(|state| {
            for vmid in PHASES.iter().flat_map(|vms| vms.all()) {
                if vmid / 1000 == first / 1000 {
                    worker(state, vmid, "pve1");
                    state
                        .ha
                        .resources
                        .insert(format!("vm:{vmid}"), BTreeMap::new());
                }
            }
            state.acl.extend(granted("Auditor"));
        });
    }
    world.sim().edit(rule);
    second.edit(group);
    Ok(())
}

/// All of them shall run on `pve1` and may run nowhere else.
fn rule(state: &mut State) {
    let options = [("nodes", "pve1"), ("strict", "1")];
    let rule = HaRule {
        rule: "fast".to_owned(),
        kind: "node-affinity".to_owned(),
        resources: state.ha.resources.keys().cloned().collect(),
        options: options
            .map(|(key, text)| (key.to_owned(), text.to_owned()))
            .into(),
        ..HaRule::default()
    };
    state.ha.rules.push(rule);
}

fn group(state: &mut State) {
    let options = [("nodes", "pve1"), ("restricted", "1")];
    let options = options.map(|(key, text)| (key.to_owned(), text.to_owned()));
    state.ha.groups.insert("fast".to_owned(), options.into());
    for resource in state.ha.resources.values_mut() {
        resource.insert("group".to_owned(), "fast".to_owned());
    }
}

/// One after the other.
pub(super) async fn all(matrix: &mut Matrix) -> Result<()> {
    for vms in PHASES {
        matrix
            .settle(&[vms.before(), vms.destroyed().to_vec()].concat())
            .await?;
    }
    let labelled: Vec<(u32, Must)> = PHASES[0]
        .before()
        .into_iter()
        .map(|v| (v, Must::Say(bound)))
        .collect();
    matrix.check("HA answers", &labelled).await?;
    ha(matrix, "HA answers", PHASES[0], |_| {}).await?;
    ha(matrix, "HA refuses", PHASES[1], |sim| {
        sim.edit(|state| state.acl.retain(|entry| entry.role != "Auditor"));
    })
    .await?;
    ha(matrix, "HA fails", PHASES[2], |sim| {
        for path in HA {
            fail(sim, path);
        }
    })
    .await?;
    one_down(matrix, PHASES[3]).await
}

/// Has the labels of HA.
fn bound(said: &mut Value) {
    for prefix in [HA_GROUP_PREFIX, HA_STRICT_PREFIX] {
        said["labels"][format!("{prefix}fast")] = json!("");
    }
}

fn fail(sim: &SimHandle, path: &str) {
    sim.add_fault(RequestFault {
        method: "GET".to_owned(),
        path: path.to_owned(),
        nth: 1,
        times: u32::MAX,
        effect: RequestEffect::FailBefore {
            status: 500,
            message: "something is wrong".to_owned(),
        },
    });
}

/// Nothing that HA says or does not say touches anything but its labels.
async fn ha(matrix: &mut Matrix, sentence: &str, vms: Vms, begin: fn(&SimHandle)) -> Result<()> {
    let before: Vec<State> = sims(matrix).map(SimHandle::state).collect();
    sims(matrix).for_each(begin);
    meanwhile(matrix, vms).await?;
    for vmid in vms.destroyed() {
        matrix.may_end(vmid);
    }
    matrix.dwell().await;
    let mut cases: Vec<(u32, Must)> = vms
        .before()
        .into_iter()
        .map(|v| (v, Must::Say(same)))
        .collect();
    cases.extend(
        [vms.fresh(), vms.fresh_unready()]
            .concat()
            .into_iter()
            .map(|v| (v, COME)),
    );
    cases.extend(vms.destroyed().map(|vmid| (vmid, Must::End)));
    matrix.check(sentence, &cases).await?;
    for (sim, acl) in sims(matrix).zip(before.into_iter().map(|state| state.acl)) {
        sim.clear_faults();
        sim.edit(|state| state.acl = acl);
    }
    right_again(matrix, sentence, vms).await
}

fn sims(matrix: &Matrix) -> impl Iterator<Item = &SimHandle> {
    matrix.world.regions.iter().map(|(_, sim)| sim)
}

/// Nodes register, others become unready, and VMs are destroyed.
async fn meanwhile(matrix: &mut Matrix, vms: Vms) -> Result<()> {
    for vmid in vms.destroyed() {
        matrix.sim(vmid).edit(|state| state.vms.remove(&vmid));
    }
    let silent: Vec<u32> = vms
        .before()
        .into_iter()
        .filter(|vmid| vmid % 2 == 1)
        .collect();
    matrix.unready(&silent).await?;
    matrix.unready(&vms.destroyed()).await?;
    matrix.register(&vms.fresh(), true).await?;
    matrix.register(&vms.fresh_unready(), false).await
}

/// All is right again, and HA is told of all that it binds.
async fn right_again(matrix: &mut Matrix, sentence: &str, vms: Vms) -> Result<()> {
    let come = [vms.fresh(), vms.fresh_unready()].concat();
    matrix
        .right_again(sentence, &vms.before(), &come, &vms.destroyed())
        .await?;
    for vmid in come {
        let key = format!("{HA_STRICT_PREFIX}fast");
        let name = super::nodes::name(vmid);
        let has = |node: &harness::ccm::Node| harness::ccm::label(node, &key).is_some();
        matrix.world.until(&name, "labels of HA", has).await?;
    }
    Ok(())
}

/// The 8 is down. What the 9 shows counts; nothing is absent.
async fn one_down(matrix: &mut Matrix, vms: Vms) -> Result<()> {
    let sentence = "one of two PVE clusters is down";
    matrix.sim(5000).set_reachable(false);
    // One that was never listed.
    let never = [5090, 5091];
    matrix
        .sim(5000)
        .edit(|state| never.map(|vmid| worker(state, vmid, "pve1")));
    meanwhile(matrix, vms).await?;
    matrix.register(&never[..1], true).await?;
    matrix.register(&never[1..], false).await?;
    matrix.dwell().await;
    // What was known before comes once the guest agents have had their time.
    let come = [vms.fresh(), vms.fresh_unready()].concat();
    matrix.initialised(&come).await?;
    let kept = [vms.before(), vms.destroyed().to_vec()].concat();
    let mut cases: Vec<(u32, Must)> = kept.into_iter().map(|v| (v, Must::Say(same))).collect();
    cases.extend(come.into_iter().map(|v| (v, COME)));
    cases.extend(never.map(|vmid| (vmid, Must::Wait)));
    matrix.check(sentence, &cases).await?;
    matrix.sim(5000).set_reachable(true);
    matrix.initialised(&never).await?;
    right_again(matrix, sentence, vms).await
}
