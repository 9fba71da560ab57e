//! A volume's whole life, told step by step: what `make demo` shows.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use csi_proto::csi::v1::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, DeleteVolumeRequest,
    NodeGetInfoRequest, NodeGetVolumeStatsRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use tokio::time::Instant;

use crate::csi::{
    create_request, mount_capability, node_publish_request, publish_request, stage_request,
};
use crate::requirements::loop_devices;
use crate::run_dir::mounted_at;
use crate::world::{FILES, NodePlugin, OWNER, REGION, World, node_id, tenant};

const SIZE: i64 = 256 << 20;
const TEXT: &[u8] = b"written on the first worker\n";
const ON_PVE1: [u32; 2] = [101, 102];

/// Prints one line per step: seconds since the step before, PVE requests, what was done.
#[derive(Debug)]
pub struct Steps {
    last: Instant,
    started: Instant,
}

impl Default for Steps {
    fn default() -> Self {
        println!("  seconds  PVE requests");
        Self {
            last: Instant::now(),
            started: Instant::now(),
        }
    }
}

impl Steps {
    /// A step has ended and took PVE this many requests.
    pub fn done(&mut self, requests: usize, what: &str) {
        let now = Instant::now();
        println!(
            "{:9.3}  {requests:12}  {what}",
            (now - self.last).as_secs_f64()
        );
        self.last = now;
    }

    /// The last line.
    pub fn finish(&self, what: &str) {
        println!("{:9.3}  in all", self.started.elapsed().as_secs_f64());
        println!("{what}: OK");
    }
}

/// The demo on the simulator: real disks where the machine allows, in memory otherwise.
pub async fn run() -> Result<()> {
    let mut steps = Steps::default();
    let builder =
        tenant(&[(ON_PVE1[0], "pve1"), (ON_PVE1[1], "pve1")]).timing(pve_sim::Timing::REAL);
    match loop_devices() {
        Ok(()) => {
            println!("The disk is real: a loop device, formatted as ext4 and mounted.");
            let world = World::start_with_loop_devices(builder).await?;
            let first = world.start_node(ON_PVE1[0], Some("pve1")).await?;
            let second = world.start_node(ON_PVE1[1], Some("pve1")).await?;
            steps.done(
                world.sim.requests().len(),
                "simulator, controller and two node plugins are up",
            );
            whole_life(&world, Some((&first, &second)), &mut steps).await?;
            first.process.stop().await?;
            second.process.stop().await?;
            end(world).await?;
        }
        Err(reason) => {
            println!(
                "The disk is in memory ({reason}): nothing is formatted or mounted, the node plugin takes no part."
            );
            let world = World::start(builder).await?;
            steps.done(
                world.sim.requests().len(),
                "simulator and controller are up",
            );
            whole_life(&world, None, &mut steps).await?;
            end(world).await?;
        }
    }
    steps.finish("PVC round trip");
    Ok(())
}

async fn end(mut world: World) -> Result<()> {
    if let Some(controller) = world.controller.take() {
        let status = controller.stop().await?;
        ensure!(status.success(), "the controller ended with {status}");
    }
    Ok(())
}

async fn whole_life(
    world: &World,
    nodes: Option<(&NodePlugin, &NodePlugin)>,
    steps: &mut Steps,
) -> Result<()> {
    let csi = world.csi();
    let request = create_request("pvc-demo", SIZE, FILES, (REGION, Some("pve1")));
    let (answer, requests) = world.counted(csi.controller().create_volume(request)).await;
    let volume = answer?.into_inner().volume.context("no volume")?;
    steps.done(
        requests,
        &format!(
            "CreateVolume: {} of {} MiB",
            volume.volume_id,
            volume.capacity_bytes >> 20
        ),
    );

    for (turn, vmid) in ON_PVE1.into_iter().enumerate() {
        let request = publish_request(&volume.volume_id, &node_id(vmid), mount_capability());
        let (answer, requests) = world
            .counted(csi.controller().controller_publish_volume(request))
            .await;
        let context = answer?.into_inner().publish_context;
        let device = context.get("DevicePath").context("no device path")?;
        steps.done(
            requests,
            &format!("ControllerPublishVolume: VM {vmid} has it as {device}"),
        );

        if let Some((first, second)) = nodes {
            let node = if turn == 0 { first } else { second };
            let mut stage = stage_request(
                &volume.volume_id,
                &context,
                &node.kubelet.join("staging"),
                mount_capability(),
            );
            stage.volume_context.clone_from(&volume.volume_context);
            use_it(node, &stage, turn == 0, steps).await?;
        }

        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            node_id: node_id(vmid),
            ..Default::default()
        };
        let (answer, requests) = world
            .counted(csi.controller().controller_unpublish_volume(request))
            .await;
        answer?;
        steps.done(
            requests,
            &format!("ControllerUnpublishVolume: VM {vmid} has lost it"),
        );
    }

    let request = DeleteVolumeRequest {
        volume_id: volume.volume_id.clone(),
        ..Default::default()
    };
    let (answer, requests) = world.counted(csi.controller().delete_volume(request)).await;
    answer?;
    let left: Vec<String> = world
        .sim
        .state()
        .volumes
        .into_iter()
        .map(|volume| volume.name)
        .collect();
    ensure!(
        left.iter()
            .all(|name| !name.contains(&format!("vm-{OWNER}-"))),
        "disks are left: {left:?}"
    );
    steps.done(requests, "DeleteVolume: the disk is gone");
    Ok(())
}

/// Stage, publish, write or read, and everything back.
async fn use_it(
    node: &NodePlugin,
    stage: &NodeStageVolumeRequest,
    first: bool,
    steps: &mut Steps,
) -> Result<()> {
    let (mut client, name) = (node.csi.node(), &node.name);
    if first {
        let info = client
            .node_get_info(NodeGetInfoRequest {})
            .await?
            .into_inner();
        steps.done(0, &format!("NodeGetInfo on {name}: {}", info.node_id));
    }
    std::fs::create_dir_all(&stage.staging_target_path)?;
    client.node_stage_volume(stage.clone()).await?;
    let staging = Path::new(&stage.staging_target_path);
    let mounted = mounted_at(staging).context("nothing is mounted at the staging path")?;
    steps.done(0, &format!("NodeStageVolume on {name}: {mounted}"));
    let target = node.kubelet.join("target");
    client
        .node_publish_volume(node_publish_request(stage, &target))
        .await?;
    steps.done(0, &format!("NodePublishVolume on {name}"));

    let file = target.join("hello");
    if first {
        let mut file = std::fs::File::create(&file)?;
        file.write_all(TEXT)?;
        file.sync_all()?;
        let request = NodeGetVolumeStatsRequest {
            volume_id: stage.volume_id.clone(),
            volume_path: target.display().to_string(),
            ..Default::default()
        };
        let usage = client
            .node_get_volume_stats(request)
            .await?
            .into_inner()
            .usage;
        let bytes = usage.first().context("no usage")?;
        steps.done(
            0,
            &format!(
                "wrote {} bytes; {} MiB of {} MiB used",
                TEXT.len(),
                bytes.used >> 20,
                bytes.total >> 20
            ),
        );
    } else {
        let mut found = Vec::new();
        std::fs::File::open(&file)?.read_to_end(&mut found)?;
        ensure!(found == TEXT, "read {found:?}");
        steps.done(0, "read the same bytes back");
    }

    let request = NodeUnpublishVolumeRequest {
        volume_id: stage.volume_id.clone(),
        target_path: target.display().to_string(),
    };
    client.node_unpublish_volume(request).await?;
    let request = NodeUnstageVolumeRequest {
        volume_id: stage.volume_id.clone(),
        staging_target_path: stage.staging_target_path.clone(),
    };
    client.node_unstage_volume(request).await?;
    ensure!(mounted_at(staging).is_none(), "still mounted");
    steps.done(
        0,
        &format!("NodeUnpublishVolume, NodeUnstageVolume on {name}"),
    );
    Ok(())
}

/// The controller's half on a real Proxmox VE: the VM keeps running, one disk comes and goes.
pub async fn run_on(config: PathBuf, vmid: u32) -> Result<()> {
    let target = crate::real_pve::Target::read(&config, vmid).await?;
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
    target: &crate::real_pve::Target,
    csi: &crate::csi::Csi,
    volume_id: &str,
    steps: &mut Steps,
    counter: &mut crate::real_pve::Counter,
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
