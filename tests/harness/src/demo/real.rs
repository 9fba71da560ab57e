//! The controller's half of a volume's life on a real Proxmox VE.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use csi_proto::csi::v1::CreateVolumeRequest;
use tonic::{Code, Status};

use super::{SIZE, Steps, interrupted, say};
use crate::caller::{Caller, until_ok};
use crate::csi::{create_request, mount_capability};
use crate::real_pve::{Counter, Target};

/// For each call that takes the disk away after an interrupt: the interrupted one may still run.
const CLEAN_UP: Duration = Duration::from_mins(1);

/// One disk on its way.
struct Life {
    target: Target,
    caller: Caller,
    counter: Counter,
    steps: Steps,
    disk: Disk,
}

/// What PVE may have of it.
enum Disk {
    Absent,
    /// Asked for, without an answer yet.
    Asked,
    Made(String),
}

/// The controller's half on a real Proxmox VE: the VM keeps running, one disk comes and goes. Whatever ends it, the disk
/// is taken away.
pub async fn run_on(config: PathBuf, vmid: u32) -> Result<()> {
    let interrupted = interrupted()?;
    let target = Target::read(&config, vmid).await?;
    let steps = Steps::default();
    let controller = target.start_controller(&config).await?;
    let mut life = Life {
        caller: Caller::new(controller.csi()),
        counter: controller.counter().await?,
        target,
        steps,
        disk: Disk::Absent,
    };
    let outcome = tokio::select! {
        outcome = life.whole() => outcome,
        () = interrupted => Err(anyhow!("interrupted")),
    };
    let outcome = match outcome {
        Ok(()) => Ok(()),
        Err(error) => Err(error.context(life.clean_up().await)),
    };
    let stopped = controller.stop().await;
    outcome.and(stopped)?;
    life.steps.finish("Controller round trip");
    Ok(())
}

impl Life {
    async fn whole(&mut self) -> Result<()> {
        let Target {
            pve_node,
            uuid,
            vmid,
            ..
        } = &self.target;
        let up = format!("controller is up; VM {vmid} on {pve_node} is {uuid}");
        self.steps.done(0, &up);

        let volume_id = self.create().await?;
        self.done(&format!("CreateVolume: {volume_id}")).await?;

        let node_id = self.node_id();
        let context = self
            .caller
            .publish_as(&volume_id, &node_id, mount_capability())
            .await?;
        let device = context.get("DevicePath").map_or("", String::as_str);
        self.done(&format!("ControllerPublishVolume: {device}"))
            .await?;

        self.caller.unpublish_as(&volume_id, &node_id).await?;
        self.done("ControllerUnpublishVolume").await?;

        self.caller.delete(&volume_id).await?;
        self.disk = Disk::Absent;
        self.done("DeleteVolume: the disk is gone").await
    }

    async fn create(&mut self) -> Result<String, Status> {
        self.disk = Disk::Asked;
        let made = self.caller.create_as(self.request()).await;
        self.disk = match &made {
            Ok(volume) => Disk::Made(volume.volume_id.clone()),
            // external-provisioner takes these for "may exist" (isFinalError).
            Err(status)
                if matches!(
                    status.code(),
                    Code::Cancelled
                        | Code::DeadlineExceeded
                        | Code::Unavailable
                        | Code::Aborted
                        | Code::ResourceExhausted
                ) =>
            {
                Disk::Asked
            }
            Err(_) => Disk::Absent,
        };
        made.map(|volume| volume.volume_id)
    }

    fn request(&self) -> CreateVolumeRequest {
        let place = (
            self.target.region.as_str(),
            Some(self.target.pve_node.as_str()),
        );
        create_request(&self.target.name, SIZE, &self.target.storage, place)
    }

    fn node_id(&self) -> String {
        format!("{}/{}", self.target.uuid, self.target.vmid)
    }

    async fn done(&mut self, what: &str) -> Result<()> {
        let requests = self.counter.since().await?;
        self.steps.done(requests, what);
        Ok(())
    }

    /// Says what is left.
    async fn clean_up(&self) -> String {
        let (node, name) = (&self.target.pve_node, &self.target.name);
        match self.remove().await {
            Ok(()) => "no disk is left on Proxmox VE".to_owned(),
            Err(status) => format!("the disk of {name} may be left on {node}: {status}"),
        }
    }

    async fn remove(&self) -> Result<(), Status> {
        let volume_id = match &self.disk {
            Disk::Absent => return Ok(()),
            Disk::Made(volume_id) => volume_id.clone(),
            // CreateVolume is idempotent: it answers with the disk that the interrupted call has made.
            Disk::Asked => {
                let again = async || self.caller.create_as(self.request()).await;
                until_ok(CLEAN_UP, again).await?.volume_id
            }
        };
        say("detaching and deleting the disk");
        let node_id = self.node_id();
        let detach = async || self.caller.unpublish_as(&volume_id, &node_id).await;
        until_ok(CLEAN_UP, detach).await?;
        until_ok(CLEAN_UP, async || self.caller.delete(&volume_id).await).await
    }
}
