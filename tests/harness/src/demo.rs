//! A volume's whole life, told step by step: what `make demo` shows.

use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use csi_proto::csi::v1::{
    ControllerUnpublishVolumeRequest, DeleteVolumeRequest, NodeGetInfoRequest,
    NodeGetVolumeStatsRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, Volume,
};

pub use self::real::run_on;
use self::steps::interrupted;
pub use self::steps::{Steps, say};
use crate::csi::{
    create_request, mount_capability, node_publish_request, publish_request, stage_request,
};
use crate::requirements::loop_devices;
use crate::run_dir::mounted_at;
use crate::world::{FILES, NodePlugin, OWNER, REGION, World, node_id, tenant};

mod real;
mod steps;

const SIZE: i64 = 256 << 20;
const TEXT: &[u8] = b"written on the first worker\n";
/// Both on the same PVE node, so that a node-local disk can move from one to the other.
const WORKERS: [u32; 2] = [101, 102];

/// The demo on the simulator: real disks where the machine allows, in memory otherwise.
pub async fn run() -> Result<()> {
    let interrupted = interrupted()?;
    tokio::select! {
        // The terminal interrupts the programs, too: that their calls fail then is no news.
        biased;
        // Dropped, the world takes its programs, mounts and disks with it.
        () = interrupted => bail!("interrupted"),
        outcome = tell() => outcome,
    }
}

async fn tell() -> Result<()> {
    let mut steps = Steps::default();
    let builder = tenant(&WORKERS.map(|vmid| (vmid, "pve1"))).timing(pve_sim::Timing::REAL);
    let (world, nodes) = match loop_devices() {
        Ok(()) => {
            say("The disk is real: a loop device, formatted as ext4 and mounted.");
            let world = World::start_with_loop_devices(builder).await?;
            let mut nodes = Vec::new();
            for vmid in WORKERS {
                nodes.push(world.start_node(vmid, Some("pve1")).await?);
            }
            (world, nodes)
        }
        Err(reason) => {
            say(&format!(
                "The disk is in memory: {reason}. Nothing is mounted, the node plugin takes no part."
            ));
            (World::start(builder).await?, Vec::new())
        }
    };
    let up = match nodes.len() {
        0 => "simulator and controller are up".to_owned(),
        some => format!("simulator, controller and {some} node plugins are up"),
    };
    steps.done(world.sim.requests().len(), &up);
    Life {
        world: &world,
        nodes: &nodes,
        steps: &mut steps,
    }
    .whole()
    .await?;
    end(world, nodes).await?;
    steps.finish("PVC round trip");
    Ok(())
}

async fn end(mut world: World, nodes: Vec<NodePlugin>) -> Result<()> {
    let programs = nodes
        .into_iter()
        .map(|node| node.process)
        .chain(world.controller.take());
    for program in programs {
        let status = program.stop().await?;
        ensure!(status.success(), "a program ended with {status}");
    }
    Ok(())
}

/// One volume on its way.
struct Life<'a> {
    world: &'a World,
    nodes: &'a [NodePlugin],
    steps: &'a mut Steps,
}

impl Life<'_> {
    async fn whole(&mut self) -> Result<()> {
        let volume = self.create().await?;
        for (turn, vmid) in WORKERS.into_iter().enumerate() {
            let stage = self.attach(&volume, vmid).await?;
            if let Some(node) = self.nodes.get(turn) {
                self.stage(node, &stage).await?;
                if turn == 0 {
                    self.write(node, &stage).await?;
                } else {
                    self.read(node)?;
                }
                self.unstage(node, &stage).await?;
            }
            self.detach(&volume, vmid).await?;
        }
        self.delete(&volume).await
    }

    async fn create(&mut self) -> Result<Volume> {
        let request = create_request("pvc-demo", SIZE, FILES, (REGION, Some("pve1")));
        let mut controller = self.world.csi().controller();
        let (answer, requests) = self.world.counted(controller.create_volume(request)).await;
        let volume = answer?.into_inner().volume.context("no volume")?;
        let size = volume.capacity_bytes >> 20;
        self.steps.done(
            requests,
            &format!("CreateVolume: {} of {size} MiB", volume.volume_id),
        );
        Ok(volume)
    }

    /// Attaches the volume; returns what the kubelet would send to the node plugin then.
    async fn attach(&mut self, volume: &Volume, vmid: u32) -> Result<NodeStageVolumeRequest> {
        let request = publish_request(&volume.volume_id, &node_id(vmid), mount_capability());
        let mut controller = self.world.csi().controller();
        let (answer, requests) = self
            .world
            .counted(controller.controller_publish_volume(request))
            .await;
        let context = answer?.into_inner().publish_context;
        let device = context.get("DevicePath").context("no device path")?;
        self.steps.done(
            requests,
            &format!("ControllerPublishVolume: VM {vmid} has it as {device}"),
        );
        let staging = self.world.folder().join(format!("k{vmid}")).join("staging");
        let mut stage = stage_request(&volume.volume_id, &context, &staging, mount_capability());
        stage.volume_context.clone_from(&volume.volume_context);
        Ok(stage)
    }

    async fn stage(&mut self, node: &NodePlugin, stage: &NodeStageVolumeRequest) -> Result<()> {
        let (mut client, name) = (node.csi.node(), &node.name);
        let info = client
            .node_get_info(NodeGetInfoRequest {})
            .await?
            .into_inner();
        self.steps
            .done(0, &format!("NodeGetInfo on {name}: {}", info.node_id));
        std::fs::create_dir_all(&stage.staging_target_path)?;
        client.node_stage_volume(stage.clone()).await?;
        let mounted = mounted_at(Path::new(&stage.staging_target_path));
        let mounted = mounted.context("nothing is mounted at the staging path")?;
        self.steps
            .done(0, &format!("NodeStageVolume on {name}: {mounted}"));
        client
            .node_publish_volume(node_publish_request(stage, &node.kubelet.join("target")))
            .await?;
        self.steps.done(0, &format!("NodePublishVolume on {name}"));
        Ok(())
    }

    async fn write(&mut self, node: &NodePlugin, stage: &NodeStageVolumeRequest) -> Result<()> {
        let target = node.kubelet.join("target");
        let mut file = std::fs::File::create(target.join("hello"))?;
        file.write_all(TEXT)?;
        file.sync_all()?;
        let request = NodeGetVolumeStatsRequest {
            volume_id: stage.volume_id.clone(),
            volume_path: target.display().to_string(),
            ..Default::default()
        };
        let usage = node
            .csi
            .node()
            .node_get_volume_stats(request)
            .await?
            .into_inner()
            .usage;
        let total = usage.first().context("no usage")?.total >> 20;
        self.steps.done(
            0,
            &format!(
                "wrote {} bytes into a file system of {total} MiB",
                TEXT.len()
            ),
        );
        Ok(())
    }

    fn read(&mut self, node: &NodePlugin) -> Result<()> {
        let mut found = Vec::new();
        std::fs::File::open(node.kubelet.join("target").join("hello"))?.read_to_end(&mut found)?;
        ensure!(found == TEXT, "read {found:?}");
        self.steps.done(0, "read the same bytes back");
        Ok(())
    }

    async fn unstage(&mut self, node: &NodePlugin, stage: &NodeStageVolumeRequest) -> Result<()> {
        let mut client = node.csi.node();
        let request = NodeUnpublishVolumeRequest {
            volume_id: stage.volume_id.clone(),
            target_path: node.kubelet.join("target").display().to_string(),
        };
        client.node_unpublish_volume(request).await?;
        let request = NodeUnstageVolumeRequest {
            volume_id: stage.volume_id.clone(),
            staging_target_path: stage.staging_target_path.clone(),
        };
        client.node_unstage_volume(request).await?;
        ensure!(
            mounted_at(Path::new(&stage.staging_target_path)).is_none(),
            "still mounted"
        );
        self.steps.done(
            0,
            &format!("NodeUnpublishVolume, NodeUnstageVolume on {}", node.name),
        );
        Ok(())
    }

    async fn detach(&mut self, volume: &Volume, vmid: u32) -> Result<()> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            node_id: node_id(vmid),
            ..Default::default()
        };
        let mut controller = self.world.csi().controller();
        let (answer, requests) = self
            .world
            .counted(controller.controller_unpublish_volume(request))
            .await;
        answer?;
        self.steps.done(
            requests,
            &format!("ControllerUnpublishVolume: VM {vmid} has lost it"),
        );
        Ok(())
    }

    async fn delete(&mut self, volume: &Volume) -> Result<()> {
        let request = DeleteVolumeRequest {
            volume_id: volume.volume_id.clone(),
            ..Default::default()
        };
        let mut controller = self.world.csi().controller();
        let (answer, requests) = self.world.counted(controller.delete_volume(request)).await;
        answer?;
        let ours = format!("vm-{OWNER}-");
        let mut left = self
            .world
            .sim
            .state()
            .volumes
            .into_iter()
            .map(|volume| volume.name);
        ensure!(left.all(|name| !name.contains(&ours)), "a disk is left");
        self.steps.done(requests, "DeleteVolume: the disk is gone");
        Ok(())
    }
}
