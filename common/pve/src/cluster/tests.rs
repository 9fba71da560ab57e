use super::*;
use crate::metrics::Metrics;
use crate::testing::{client, config, reply};
use crate::transport::{Bottom, Cause, Phase, TransportError};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tower::{BoxError, service_fn};

#[test]
fn a_guest_of_a_host_that_just_started_is_neither_stopped_nor_lost() {
    let data = json!([
        {"vmid": 100, "node": "pve1", "status": "unknown", "id": "qemu/100", "type": "qemu"},
        {"vmid": "101", "node": "pve1", "status": "running", "type": "qemu", "name": "worker-a",
         "pool": "tenant-a", "template": "1", "future": {}, "maxcpu": 2.0, "maxmem": "402653184", "uptime": 5},
        {"vmid": 102, "node": "", "type": "qemu"},
        {"vmid": 103, "node": "pve1", "type": "qemu", "pool": "../x"},
    ]);
    let list = wire::listing(&data, vm_entry).unwrap();
    assert_eq!(list.undecodable, 2);
    let [young, known] = list.entries.as_slice() else {
        panic!("{list:?}")
    };
    assert_eq!((&young.state, &young.name), (&RunState::Unknown, &None));
    assert_eq!(known.state, RunState::Running);
    assert_eq!(known.pool.as_ref().unwrap().as_str(), "tenant-a");
    assert!(known.template);
    let sizes = |vm: &VmEntry| (vm.max_cpu, vm.max_memory, vm.uptime);
    assert_eq!(sizes(young), (None, None, None));
    let memory = Bytes::new(402_653_184);
    assert_eq!(sizes(known), (Some(2), Some(memory), Some(5)));
}

#[test]
fn an_odd_size_makes_no_guest_unreadable() {
    let data = json!([{"vmid": 100, "node": "pve1", "type": "qemu", "maxcpu": "4.0", "maxmem": -1, "uptime": {}}]);
    let list = wire::listing(&data, vm_entry).unwrap();
    let [guest] = list.entries.as_slice() else {
        panic!("{list:?}")
    };
    assert_eq!(
        (guest.max_cpu, guest.max_memory, guest.uptime),
        (Some(4), None, None)
    );
}

#[test]
fn recorded_storage_and_node_entries_are_read() {
    let data = json!([{"status": "available", "maxdisk": 966_367_641_600_u64, "id": "storage/pve1/thin",
        "content": "rootdir,images", "node": "pve1", "disk": "96636764160", "type": "storage",
        "plugintype": "lvmthin", "shared": "0", "storage": "thin"}]);
    let list = wire::listing(&data, storage_entry).unwrap();
    let storage = list.entries.first().unwrap();
    assert_eq!(storage.used, Some(Bytes::new(96_636_764_160)));
    assert!(!storage.shared && storage.available && storage.content.contains("images"));
    let node: Value = json!([{"type": "node", "node": "pve1", "status": "offline", "level": ""}]);
    let list = wire::listing(&node, node_entry).unwrap();
    assert_eq!(list.entries.first().unwrap().state, HostState::Offline);
}

#[tokio::test]
async fn a_vmid_is_free_taken_or_not_known() {
    let at = |status, body: &'static str| {
        client(move |request| {
            assert_eq!(request.uri().query(), Some("vmid=100"));
            Ok(reply(status, "Parameter verification failed.", body))
        })
    };
    let id: VmId = "100".parse().unwrap();
    let taken = r#"{"errors":{"vmid":"VM 100 already exists"},"data":null}"#;
    assert_eq!(
        at(200, r#"{"data":"100"}"#).vmid_state(id).await,
        Ok(VmidState::Free)
    );
    assert_eq!(
        at(200, r#"{"data":100}"#).vmid_state(id).await,
        Ok(VmidState::Free)
    );
    assert_eq!(at(400, taken).vmid_state(id).await, Ok(VmidState::Taken));
    for (status, body) in [
        (200, r#"{"data":101}"#),
        (400, "{}"),
        (500, taken),
        (403, "{}"),
    ] {
        assert!(
            at(status, body).vmid_state(id).await.is_err(),
            "{status} {body}"
        );
    }
}

/// An endpoint that answers `answers` times as one with this list of guests would, and then no more.
fn endpoint(taken: &'static [&'static str], answers: usize) -> Bottom {
    endpoint_of(taken, answers, "[]")
}

/// The same with these hosts.
fn endpoint_of(taken: &'static [&'static str], answers: usize, hosts: &'static str) -> Bottom {
    let left = Arc::new(AtomicUsize::new(answers));
    Bottom::new(service_fn(move |request: http::Request<bytes::Bytes>| {
        let query = request.uri().query().unwrap();
        let vmid = query.replace("vmid=", "");
        let alive = left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            })
            .is_ok();
        let answer = if !alive {
            Err(TransportError::new(Phase::NotSent, Cause::Connect, "down"))
        } else if query == "type=node" {
            Ok(reply(200, "OK", &format!(r#"{{"data":{hosts}}}"#)))
        } else if taken.contains(&vmid.as_str()) {
            let body = r#"{"errors":{"vmid":"VM already exists"},"data":null}"#;
            Ok(reply(400, "Parameter verification failed.", body))
        } else {
            Ok(reply(200, "OK", &format!(r#"{{"data":"{vmid}"}}"#)))
        };
        async move { answer.map_err(BoxError::from) }
    }))
}

#[tokio::test(start_paused = true)]
async fn the_control_question_is_answered_by_whoever_called_the_vmid_free() {
    let ids: (VmId, VmId) = ("100".parse().unwrap(), "101".parse().unwrap());
    for (sentence, endpoints, expected) in [
        (
            "one that sees all",
            [endpoint(&["101"], 9), endpoint(&[], 9)],
            (VmidState::Free, Some(VmidState::Taken)),
        ),
        (
            "one that sees nothing and dies, then one that sees all",
            [endpoint(&[], 1), endpoint(&["100", "101"], 9)],
            (VmidState::Taken, None),
        ),
    ] {
        let client = Client::with_bottoms(
            config(&["https://pve1:8006", "https://pve2:8006"]),
            Metrics::default(),
            endpoints.into(),
        );
        let said = client.unwrap().vmid_states(ids.0, Some(ids.1)).await;
        assert_eq!(said, Ok(expected), "{sentence}");
    }
}

#[tokio::test(start_paused = true)]
async fn absence_is_told_by_one_endpoint_that_sees_most_hosts() {
    let ids: (VmId, VmId) = ("100".parse().unwrap(), "101".parse().unwrap());
    let all = r#"[{"node":"a","status":"online"},{"node":"b","status":"online"},{"node":"c","status":"offline"}]"#;
    let half = r#"[{"node":"a","status":"online"},{"node":"b","status":"offline"}]"#;
    let odd = r#"[{"node":"a","status":"online"},{"node":""}]"#;
    let free = |majority| Absence {
        asked: VmidState::Free,
        control: VmidState::Taken,
        majority,
    };
    for (sentence, endpoints, expected) in [
        (
            "two of three",
            [endpoint_of(&["101"], 9, all), endpoint(&[], 9)],
            free(true),
        ),
        (
            "one of two",
            [endpoint_of(&["101"], 9, half), endpoint(&[], 9)],
            free(false),
        ),
        (
            "one that can't be read counts as down",
            [endpoint_of(&["101"], 9, odd), endpoint(&[], 9)],
            free(false),
        ),
        (
            "one that dies half-way, then another",
            [endpoint_of(&[], 2, all), endpoint_of(&["101"], 9, half)],
            free(false),
        ),
    ] {
        let client = Client::with_bottoms(
            config(&["https://pve1:8006", "https://pve2:8006"]),
            Metrics::default(),
            endpoints.into(),
        );
        let said = client.unwrap().absence(ids.0, ids.1).await;
        assert_eq!(said, Ok(expected), "{sentence}");
    }
}
