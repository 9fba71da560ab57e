//! The controller's half of a volume's life on a real Proxmox VE.

use std::path::PathBuf;

use anyhow::{Context, Result};
use csi_proto::csi::v1::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, DeleteVolumeRequest,
};

use super::{SIZE, Steps};
use crate::csi::{Csi, create_request, mount_capability, publish_request};
use crate::real_pve::{Counter, Target};

/// The controller's half on a real Proxmox VE: the VM keeps running, one disk comes and goes.
pub async fn run_on(config: PathBuf, vmid: u32) -> Result<()> {
    let target = Target::read(&config, vmid).await?;
    let mut steps = Steps::default();
    let controller = target.start_controller(&config).await?;
    let csi = controller.csi();
    steps.done(
        0,
        &format!(
            "controller is up; VM {vmid} on {} is {}",
            target.pve_node, target.uuid
        ),
    );
    let mut counter = controller.counter().await?;

    let place = (target.region.as_str(), Some(target.pve_node.as_str()));
    let request = create_request(&target.name, SIZE, &target.storage, place);
    let volume = csi
        .controller()
        .create_volume(request)
        .await?
        .into_inner()
        .volume
        .context("no volume")?;
    steps.done(
        counter.since().await?,
        &format!("CreateVolume: {}", volume.volume_id),
    );

    let outcome =
        attach_and_detach(&target, &csi, &volume.volume_id, &mut steps, &mut counter).await;
    let request = DeleteVolumeRequest {
        volume_id: volume.volume_id.clone(),
        ..Default::default()
    };
    if let Err(error) = outcome {
        // The disk must not stay behind, but never goes while a VM has it: the driver sees to both.
        let deleted = csi.controller().delete_volume(request).await;
        return Err(error.context(format!(
            "disk {} {}",
            volume.volume_id,
            if deleted.is_ok() {
                "was removed"
            } else {
                "is left"
            }
        )));
    }
    csi.controller().delete_volume(request).await?;
    steps.done(counter.since().await?, "DeleteVolume: the disk is gone");
    controller.stop().await?;
    steps.finish("Controller round trip");
    Ok(())
}

async fn attach_and_detach(
    target: &Target,
    csi: &Csi,
    volume_id: &str,
    steps: &mut Steps,
    counter: &mut Counter,
) -> Result<()> {
    let node_id = format!("{}/{}", target.uuid, target.vmid);
    let request: ControllerPublishVolumeRequest =
        publish_request(volume_id, &node_id, mount_capability());
    let published = csi.controller().controller_publish_volume(request).await;
    let shown = published
        .as_ref()
        .map(|answer| answer.get_ref().publish_context.get("DevicePath").cloned());
    if let Ok(device) = shown {
        steps.done(
            counter.since().await?,
            &format!("ControllerPublishVolume: {}", device.unwrap_or_default()),
        );
    }
    let request = ControllerUnpublishVolumeRequest {
        volume_id: volume_id.to_owned(),
        node_id,
        ..Default::default()
    };
    csi.controller()
        .controller_unpublish_volume(request)
        .await?;
    published?;
    steps.done(counter.since().await?, "ControllerUnpublishVolume");
    Ok(())
}
