//! One volume of a case, and the RPCs of its life in the sidecars' words.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tonic::{Code, Status};

use super::Stage;
use crate::caller::{Caller, SIZE};
use crate::csi::create_request;
use crate::world::REGION;

/// The RPCs that are swept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rpc {
    /// CreateVolume.
    Create,
    /// ControllerPublishVolume.
    Publish,
    /// `ControllerExpandVolume` of the attached volume.
    Expand,
    /// ControllerUnpublishVolume.
    Unpublish,
    /// DeleteVolume.
    Delete,
}

/// What an RPC said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The handle and the bytes of the volume that is there.
    Made(String, i64),
    /// The publish context.
    Attached(HashMap<String, String>),
    /// The bytes of the grown volume.
    Grown(i64),
    /// Nothing but success.
    Done,
}

/// A volume in the making, and the VM that it is for.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Its CSI name.
    pub name: String,
    /// The PVE storage.
    pub storage: &'static str,
    /// The PVE node, on storages of one host.
    pub zone: Option<&'static str>,
    /// The VM that it is attached to.
    pub vmid: u32,
    /// The handle, once it was made; empty before.
    pub handle: String,
    /// The bytes that it was made or grown to.
    pub bytes: i64,
}

/// To what a volume is grown: 96 MiB.
const GROWN: i64 = SIZE + (SIZE / 2);

/// A sidecar's patience, much shortened: how often it calls, and its longest pause.
pub const TRIES: u32 = 12;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(700);
/// An RPC has no reason to take longer in a simulator in which nothing takes time.
const HANGS: Duration = Duration::from_secs(45);

impl Rpc {
    /// The order of a life.
    pub const LIFE: [Self; 5] = [
        Self::Create,
        Self::Publish,
        Self::Expand,
        Self::Unpublish,
        Self::Delete,
    ];

    /// The RPCs before this one in a life.
    pub fn before(self) -> impl Iterator<Item = Self> {
        Self::LIFE.into_iter().take_while(move |rpc| *rpc != self)
    }

    /// The RPCs after this one.
    pub fn after(self) -> impl Iterator<Item = Self> {
        Self::LIFE
            .into_iter()
            .skip_while(move |rpc| *rpc != self)
            .skip(1)
    }

    /// What has to be true once it has said OK.
    pub fn stage(self) -> Stage {
        match self {
            Self::Create | Self::Unpublish => Stage::Detached,
            Self::Publish | Self::Expand => Stage::Attached,
            Self::Delete => Stage::Gone,
        }
    }

    /// Whether a sidecar takes the code for "nothing is there and nothing will come": external-provisioner's
    /// `checkError`, and external-attacher's `isFinalError`.
    pub fn is_final(self, code: Code) -> bool {
        let goes_on = [
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::Unavailable,
            Code::Aborted,
        ];
        matches!(self, Self::Create | Self::Publish) && !goes_on.contains(&code)
    }
}

impl Volume {
    /// Calls once.
    pub async fn call(&mut self, caller: &Caller, rpc: Rpc) -> Result<Answer, Status> {
        let late = Status::internal(format!("{rpc:?} did not answer within {HANGS:?}"));
        let answer = timeout(HANGS, self.called(caller, rpc)).await;
        let answer = answer.unwrap_or(Err(late))?;
        match &answer {
            Answer::Made(handle, bytes) => {
                self.handle.clone_from(handle);
                self.bytes = *bytes;
            }
            Answer::Grown(bytes) => self.bytes = *bytes,
            Answer::Attached(_) | Answer::Done => {}
        }
        Ok(answer)
    }

    async fn called(&self, caller: &Caller, rpc: Rpc) -> Result<Answer, Status> {
        let handle = &self.handle;
        match rpc {
            Rpc::Create => {
                let place = (REGION, self.zone);
                let request = create_request(&self.name, SIZE, self.storage, place);
                let volume = caller.create_as(request).await?;
                Ok(Answer::Made(volume.volume_id, volume.capacity_bytes))
            }
            Rpc::Publish => {
                let context = caller.publish(handle, self.vmid).await?;
                Ok(Answer::Attached(context))
            }
            Rpc::Expand => Ok(Answer::Grown(caller.expand(handle, GROWN).await?)),
            Rpc::Unpublish => {
                caller.unpublish(handle, self.vmid).await?;
                Ok(Answer::Done)
            }
            Rpc::Delete => {
                caller.delete(handle).await?;
                Ok(Answer::Done)
            }
        }
    }
}

/// The pause of a sidecar before call number `tried` + 1.
pub async fn back_off(tried: u32) {
    let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(tried));
    sleep(pause.min(LONGEST_PAUSE)).await;
}
