//! A disk of the tenant that sits in a VM of another: it stays there, whoever asks.

use csi_proto::csi::v1::{ControllerUnpublishVolumeRequest, DeleteVolumeRequest};
use harness::csi::{mount_capability, publish_request};
use harness::truth::volid;
use harness::two_tenants::{Power, WORKER, bravo};
use harness::world::node_id;
use pve_sim::{Device, Vm};

use crate::Due;
use crate::calls::{Call, Volumes};
use crate::judge::Judge;
use crate::matrix::world;

fn calls(volumes: &Volumes) -> Vec<Call> {
    let spare = &volumes.spare;
    let publish = |vmid| Call::Publish(publish_request(spare, &node_id(vmid), mount_capability()));
    let unpublish = |node_id: String| {
        Call::Unpublish(ControllerUnpublishVolumeRequest {
            volume_id: spare.clone(),
            node_id,
            ..Default::default()
        })
    };
    vec![
        Call::Delete(DeleteVolumeRequest {
            volume_id: spare.clone(),
            ..Default::default()
        }),
        publish(WORKER),
        publish(bravo::VMS[0]),
        unpublish(String::new()),
        unpublish(node_id(bravo::VMS[0])),
        unpublish("claims-bravo".to_owned()),
        unpublish(format!("bravo-worker-1/{}", bravo::VMS[0])),
    ]
}

/// Puts a disk into a VM.
type Put = fn(&mut Vm, &str);

/// How an operator may have put it there.
fn places(volid: &str) -> Vec<(&'static str, Put)> {
    assert!(volid.starts_with("both:9999/"), "{volid}");
    vec![
        ("in its config and in QEMU", |vm, volid| {
            vm.config.insert("scsi5".to_owned(), volid.to_owned());
            let device = Device {
                volid: volid.to_owned(),
                ..Device::default()
            };
            vm.devices.insert("scsi5".to_owned(), device);
        }),
        ("pending", |vm, volid| {
            vm.pending.insert("scsi5".to_owned(), volid.to_owned());
        }),
        ("as its CD", |vm, volid| {
            vm.config
                .insert("ide2".to_owned(), format!("{volid},media=cdrom"));
        }),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_of_the_tenant_in_another_tenants_vm_is_neither_taken_out_nor_attached_twice_nor_freed()
 {
    let (tenants, volumes) = world(Power::Root).await;
    let disk = volid(&volumes.spare);
    let untouched = tenants.world.sim.state();
    for (place, put) in places(&disk) {
        tenants
            .world
            .sim
            .with_vm(bravo::VMS[0], |vm| put(vm, &disk));
        let mut judge = Judge::new(&tenants).await;
        for call in calls(&volumes) {
            judge.case(&call, place, Due::Refused).await;
        }
        assert!(judge.failures.is_empty(), "{place}: {:#?}", judge.failures);
        let before = untouched.clone();
        tenants.world.sim.edit(|state| *state = before);
    }
}
