//! What happens to single VMs: all at the same time.

use anyhow::{Result, ensure};
use harness::world::{POOL, uuid};
use pve_model::topology::{
    BETA_ZONE, FORMER_ZONE, HOST_LABEL, SHUTDOWN_TAINT, VMID_ANNOTATION, ZONE,
};
use pve_sim::State;
use serde_json::{Value, json};

use super::nodes::{COME, Matrix, Must, name, worker};
use super::{DWELL, same};

/// What happens to a VM, and what must hold of its Node.
struct Row {
    sentence: &'static str,
    happens: fn(&mut State, u32),
    /// Of one that is ready, and of one that is not.
    before: [Must; 2],
    /// Of those that have not been initialised before, likewise.
    fresh: [Must; 2],
}

const KEPT: [Must; 2] = [Must::Say(same); 2];
const WAIT: [Must; 2] = [Must::Wait; 2];
const COMES: [Must; 2] = [COME; 2];
/// A Node that is not ready ends, one that is ready never does.
const ENDS: [Must; 2] = [Must::Say(same), Must::End];

/// Where VMs are restored to.
const AWAY: u32 = 1000;

fn rows() -> Vec<Row> {
    let mut rows = found();
    rows.extend(lost());
    rows
}

/// Their VMs are there.
fn found() -> Vec<Row> {
    let row = |sentence, happens, before, fresh| Row {
        sentence,
        happens,
        before,
        fresh,
    };
    vec![
        row("nothing happens", |_, _| {}, KEPT, COMES),
        row("the VM is renamed", rename, KEPT, COMES),
        row(
            "it is migrated",
            |s, v| set_host(s, v, "pve2"),
            [Must::Say(on_pve2); 2],
            COMES,
        ),
        row(
            "it is backed up",
            |s, v| set(s, v, "lock", "backup"),
            KEPT,
            COMES,
        ),
        row(
            "its UUID is in upper case",
            |s, v| set_smbios(s, v, &format!("uuid={}", uuid(v).to_uppercase())),
            KEPT,
            COMES,
        ),
        row(
            "its UUID comes last",
            |s, v| {
                set_smbios(
                    s,
                    v,
                    &format!("manufacturer=acme,family=x,uuid={}", uuid(v)),
                );
            },
            KEPT,
            COMES,
        ),
        row(
            "the other fields are in base64",
            |s, v| set_smbios(s, v, &format!("base64=1,serial=YWNtZQ==,uuid={}", uuid(v))),
            KEPT,
            COMES,
        ),
        row(
            "it is restored under another number",
            restore,
            [Must::Say(is_away); 2],
            COMES,
        ),
        row(
            "it is stopped",
            stop,
            [Must::Say(same), Must::Say(is_off)],
            [COME, Must::Come { shut_down: true }],
        ),
    ]
}

/// Their VMs are not found.
fn lost() -> Vec<Row> {
    let row = |sentence, happens, before| Row {
        sentence,
        happens,
        before,
        fresh: WAIT,
    };
    vec![
        row("it is taken out of the pool", hide, KEPT),
        row("it has a clone with the same UUID", clone, KEPT),
        row(
            "its firmware loses its UUID",
            |s, v| set_smbios(s, v, "manufacturer=acme"),
            KEPT,
        ),
        row(
            "it becomes a template",
            |s, v| set(s, v, "template", "1"),
            KEPT,
        ),
        row("it is destroyed by hand", destroy, ENDS),
        row("its number is reused in the pool", reuse, ENDS),
        row(
            "its number is reused by another tenant",
            |s, v| {
                reuse(s, v);
                hide(s, v);
            },
            KEPT,
        ),
    ]
}

fn on_pve2(said: &mut Value) {
    for key in [ZONE, BETA_ZONE, FORMER_ZONE, HOST_LABEL] {
        said["labels"][key] = json!("pve2");
    }
}

fn is_away(said: &mut Value) {
    let number = said["annotations"][VMID_ANNOTATION].as_str();
    let number: u32 = number
        .and_then(|text| text.parse().ok())
        .unwrap_or_default();
    said["annotations"][VMID_ANNOTATION] = json!((number + AWAY).to_string());
}

fn is_off(said: &mut Value) {
    if let Some(taints) = said["taints"].as_array_mut() {
        taints.insert(0, json!(SHUTDOWN_TAINT));
    }
}

fn set(state: &mut State, vmid: u32, key: &str, text: &str) {
    if let Some(vm) = state.vms.get_mut(&vmid) {
        vm.config.insert(key.to_owned(), text.to_owned());
    }
}

/// A config is read again when the VM has another name or is started.
fn rename(state: &mut State, vmid: u32) {
    set(state, vmid, "name", &format!("other-{vmid}"));
}

fn set_smbios(state: &mut State, vmid: u32, text: &str) {
    rename(state, vmid);
    set(state, vmid, "smbios1", text);
}

fn set_host(state: &mut State, vmid: u32, host: &str) {
    if let Some(vm) = state.vms.get_mut(&vmid) {
        host.clone_into(&mut vm.node);
    }
}

fn stop(state: &mut State, vmid: u32) {
    if let Some(vm) = state.vms.get_mut(&vmid) {
        vm.running = false;
    }
}

fn hide(state: &mut State, vmid: u32) {
    if let Some(pool) = state.pools.get_mut(POOL) {
        pool.vms.remove(&vmid);
    }
}

/// A clone of the API gets a UUID of its own; a copy of the config file does not.
fn clone(state: &mut State, vmid: u32) {
    worker(state, vmid + AWAY, "pve2");
    set(
        state,
        vmid + AWAY,
        "smbios1",
        &format!("uuid={}", uuid(vmid)),
    );
}

fn restore(state: &mut State, vmid: u32) {
    clone(state, vmid);
    set_host(state, vmid + AWAY, "pve1");
    destroy(state, vmid);
}

fn destroy(state: &mut State, vmid: u32) {
    state.vms.remove(&vmid);
    hide(state, vmid);
}

/// A new worker has the number.
fn reuse(state: &mut State, vmid: u32) {
    worker(state, vmid, "pve2");
    set(state, vmid, "name", &format!("new-{vmid}"));
    set(
        state,
        vmid,
        "smbios1",
        &format!("uuid={}", uuid(vmid + 2 * AWAY)),
    );
}

/// The VMs of a row: two of Nodes that are there before, two of Nodes that register meanwhile; the second of each is not
/// ready.
fn of(row: usize) -> ([u32; 2], [u32; 2]) {
    let base = 1000 + 10 * u32::try_from(row).unwrap_or(u32::MAX);
    ([base, base + 1], [base + 2, base + 3])
}

/// All VMs of all rows.
pub(super) fn numbers() -> Vec<u32> {
    let all = (0..rows().len()).map(of);
    all.flat_map(|(before, fresh)| before.into_iter().chain(fresh))
        .collect()
}

/// All of it in one go.
pub(super) async fn all(matrix: &mut Matrix) -> Result<()> {
    let rows = rows();
    let places: Vec<_> = (0..rows.len()).map(of).collect();
    let before: Vec<u32> = places.iter().flat_map(|(before, _)| *before).collect();
    matrix.settle(&before).await?;
    let sim = matrix.world.sim();
    let healthy = sim.state();
    sim.edit(|state| {
        for (row, (before, fresh)) in rows.iter().zip(&places) {
            for vmid in before.iter().chain(fresh) {
                (row.happens)(state, *vmid);
            }
        }
    });
    // pvestatd tells of it.
    sim.freeze_resources(false);
    matrix.listed(sim).await?;
    let late: Vec<u32> = places.iter().map(|(before, _)| before[1]).collect();
    matrix.unready(&late).await?;
    let fresh: Vec<[u32; 2]> = places.iter().map(|(_, fresh)| *fresh).collect();
    let column = |at: usize| -> Vec<u32> { fresh.iter().map(|two| two[at]).collect() };
    matrix.register(&column(0), true).await?;
    matrix.register(&column(1), false).await?;
    let ended = ended(matrix, &rows, &places).await?;
    matrix.dwell().await;
    for (row, (before, fresh)) in rows.iter().zip(&places) {
        let cases = [
            (before[0], row.before[0]),
            (before[1], row.before[1]),
            (fresh[0], row.fresh[0]),
            (fresh[1], row.fresh[1]),
        ];
        matrix.check(row.sentence, &cases).await?;
    }
    matrix.world.sim().edit(|state| {
        *state = healthy;
        for vmid in &ended {
            state.vms.remove(vmid);
        }
    });
    matrix.world.sim().freeze_resources(false);
    let same: Vec<u32> = before
        .into_iter()
        .filter(|vmid| !ended.contains(vmid))
        .collect();
    let come: Vec<u32> = fresh.concat();
    matrix
        .right_again("what happens to VMs", &same, &come, &ended)
        .await
}

/// The Nodes that end, once they have ended: in less than a fault lasts, so that it lasts long enough for a wrong end.
async fn ended(
    matrix: &mut Matrix,
    rows: &[Row],
    places: &[([u32; 2], [u32; 2])],
) -> Result<Vec<u32>> {
    let ends = rows.iter().zip(places);
    let ends = ends.filter(|(row, _)| matches!(row.before[1], Must::End));
    let ended: Vec<u32> = ends.map(|(_, (before, _))| before[1]).collect();
    for vmid in &ended {
        matrix.may_end(*vmid);
    }
    for vmid in &ended {
        let took = matrix.world.deleted(&name(*vmid)).await?;
        ensure!(took < DWELL, "{took:?} is longer than a fault lasts");
    }
    Ok(ended)
}
