//! A running simulator: addresses, and the levers that tests pull. The control API offers the same over the wire.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use crate::builder::{Builder, HardwareKind};
use crate::faults::{RequestFault, TaskFault};
use crate::hardware::{Hardware, LoopHardware, MemoryHardware};
use crate::http::server::{self, Endpoint, Service};
use crate::http::tls;
use crate::log::Entry;
use crate::sim::Sim;
use crate::state::{Health, State, Vm, VmFaults, VmNumber};
use crate::{SimError, control, dispatch, qemu};

/// A running simulator; ends when dropped.
#[derive(Debug)]
pub struct SimHandle {
    pub(crate) sim: Arc<Sim>,
    urls: Vec<String>,
    control: String,
    ca_pem: String,
    fingerprint: String,
}

pub(crate) async fn start(builder: Builder) -> Result<SimHandle, SimError> {
    let Some(first) = builder.state.nodes.keys().next().cloned() else {
        return Err(SimError::Scenario("there is no pve node".to_owned()));
    };
    let hardware: Box<dyn Hardware> = match &builder.hardware {
        HardwareKind::Memory => Box::new(MemoryHardware),
        HardwareKind::Loop { run_dir } => {
            Box::new(LoopHardware::new(run_dir).map_err(SimError::Hardware)?)
        }
    };
    let names: Vec<String> = builder.state.nodes.keys().cloned().collect();
    let sim = Arc::new(Sim::new(builder.state, &builder.settings, hardware));
    boot(&sim)?;
    let identity = tls::generate(&names)?;
    sim.certificates.present(identity.clone());
    let scheme = if builder.tls { "https" } else { "http" };
    let mut urls = Vec::new();
    for (at, node) in std::iter::once(&first)
        .chain(&builder.endpoints)
        .enumerate()
    {
        let address = if at == 0 {
            builder.listen
        } else {
            SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
        };
        let (inner, here) = (sim.clone(), node.clone());
        let service: Service = Arc::new(move |request| {
            Box::pin(dispatch::answer(inner.clone(), here.clone(), request))
        });
        let endpoint = Endpoint {
            service,
            tls: builder.tls.then(|| sim.certificates.subscribe()),
            reachable: Some(sim.doors.subscribe(node)),
            stop: sim.stop.clone(),
            tracker: sim.tracker.clone(),
        };
        urls.push(format!(
            "{scheme}://{}",
            server::serve(address, endpoint).await?
        ));
    }
    let control = control::serve(&sim, builder.control).await?;
    Ok(SimHandle {
        sim,
        urls,
        control: format!("http://{control}"),
        ca_pem: identity.ca_pem,
        fingerprint: identity.fingerprint,
    })
}

/// Gives the scenario's volumes their bytes and its running VMs their devices.
fn boot(sim: &Sim) -> Result<(), SimError> {
    let hardware = |text: String| SimError::Hardware(text);
    let volumes = sim.lock().volumes.clone();
    for volume in &volumes {
        sim.hardware
            .adopt(&crate::volumes::backing(volume), volume.size)
            .map_err(hardware)?;
    }
    let running: Vec<(VmNumber, String)> = {
        let mut state = sim.lock();
        let list = state
            .vms
            .iter()
            .filter(|(_, vm)| vm.running)
            .map(|(vmid, vm)| (*vmid, vm.node.clone()))
            .collect();
        state.vms.values_mut().for_each(|vm| vm.running = false);
        list
    };
    for (vmid, node) in running {
        qemu::start(sim, &node, vmid)
            .map_err(|fail| SimError::Scenario(format!("vm {vmid}: {}", fail.exit_text())))?;
    }
    Ok(())
}

impl SimHandle {
    /// Base URL of the first PVE node's API, `https://127.0.0.1:<port>`; the API lies below `/api2/json`.
    pub fn url(&self) -> &str {
        self.urls.first().map_or("", String::as_str)
    }

    /// All API endpoints: the first node's, then those of [`Builder::endpoint`].
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Base URL of the control API (plain HTTP).
    pub fn control_url(&self) -> &str {
        &self.control
    }

    /// Certificate of the CA that signed the server's first one, PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// SHA-256 of the first server certificate, `AA:BB:…`.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    pub fn add_fault(&self, fault: RequestFault) {
        self.sim.faults().requests.push(fault);
    }

    pub fn add_task_fault(&self, fault: TaskFault) {
        self.sim.faults().tasks.push(fault);
    }

    /// The next `times` deletions on this storage find the volume in use.
    pub fn storage_busy(&self, storage: &str, times: u32) {
        self.sim
            .faults()
            .busy_storages
            .insert(storage.to_owned(), times);
    }

    /// Rules for requests and tasks that are not used up.
    pub fn faults_left(&self) -> usize {
        let faults = self.sim.faults();
        faults.requests.len() + faults.tasks.len()
    }

    pub fn clear_faults(&self) {
        *self.sim.faults() = crate::faults::Faults::default();
        self.sim
            .lock()
            .vms
            .values_mut()
            .for_each(|vm| vm.faults = VmFaults::default());
    }

    /// Changes what goes wrong inside a VM; `false` if there is no such VM.
    pub fn vm_faults(&self, vmid: VmNumber, change: impl FnOnce(&mut VmFaults)) -> bool {
        self.with_vm(vmid, |vm| change(&mut vm.faults)).is_some()
    }

    /// How a PVE node answers from now on. Its VMs stay as they are.
    pub fn node_health(&self, node: &str, health: Health) {
        self.sim.set_health(node, health);
    }

    /// Takes the power away: its VMs' QEMUs end and its endpoint closes at once; the others get 596 for 1 s, then 595, and the HA
    /// stack fences it after 60 s and starts its guests elsewhere after 130 s, on the simulator's clock.
    pub fn power_off(&self, node: &str) {
        self.sim.power_off(node);
    }

    /// Gives the power back: a member after 3 s, its services after 10 s, its VMs' names known 5 s later; `onboot` VMs start.
    pub fn power_on(&self, node: &str) {
        self.sim.power_on(node);
    }

    /// Freezes what `/cluster/resources` says of status, names and sizes, or lets it follow again (10 s late).
    pub fn freeze_resources(&self, frozen: bool) {
        let state = self.sim.lock();
        self.sim
            .stats()
            .freeze(&state, self.sim.clock.now(), frozen);
    }

    /// Whether the cluster has quorum; `None`: it follows from the nodes' health.
    pub fn quorum(&self, quorate: Option<bool>) {
        self.sim.lock().quorate = quorate;
    }

    /// Whether one PVE node has quorum; `None`: as the cluster.
    pub fn node_quorum(&self, node: &str, quorate: Option<bool>) {
        if let Some(node) = self.sim.lock().nodes.get_mut(node) {
            node.quorate = quorate;
        }
    }

    /// Whether anything listens for the API at all; the ports stay the same.
    pub fn set_reachable(&self, reachable: bool) {
        self.sim.doors.open_all(reachable);
    }

    /// Lets go of everything that [`RequestEffect::Hold`](crate::RequestEffect::Hold) and its like hold now.
    pub fn release(&self) {
        self.sim.holds.release();
    }

    /// Lets go of one held task by its UPID, or of the requests of one `METHOD template`; `false` if none is held.
    pub fn release_one(&self, what: &str) -> bool {
        self.sim.holds.release_one(what)
    }

    /// Tasks that start from now on (of this worker type, or all) stand still before their work, one release each.
    pub fn hold_tasks(&self, kind: Option<&str>) {
        self.sim.faults().hold_tasks(kind);
    }

    /// Ends [`SimHandle::hold_tasks`]; tasks that stand still go on.
    pub fn release_tasks(&self) {
        self.sim.faults().let_tasks_go();
        self.sim.holds.release();
    }

    /// UPIDs of the workers that run now, in the order in which they began.
    pub fn running_tasks(&self) -> Vec<String> {
        let tasks = self.sim.tasks();
        let running = tasks.list.iter().filter(|task| task.exit.is_none());
        running.map(|task| task.upid.clone()).collect()
    }

    /// What is held: requests as `METHOD template`, tasks as their UPID.
    pub fn held(&self) -> tokio::sync::watch::Receiver<Vec<String>> {
        self.sim.holds.subscribe()
    }

    pub fn advance(&self, by: Duration) {
        self.sim.clock.advance(by);
    }

    /// Time on the simulator's clock since its start.
    pub fn now(&self) -> Duration {
        self.sim.clock.now()
    }

    pub fn requests(&self) -> Vec<Entry> {
        self.sim.log().entries.clone()
    }

    pub fn clear_requests(&self) {
        self.sim.log().entries.clear();
    }

    /// Requests by `METHOD template` since the last clear.
    pub fn request_counts(&self) -> std::collections::BTreeMap<String, u64> {
        self.sim.log().counts()
    }

    /// A copy of the cluster's state.
    pub fn state(&self) -> State {
        self.sim.tick();
        self.sim.lock().clone()
    }

    /// Changes the state behind the API's back, as an administrator at the shell would.
    pub fn edit<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        self.sim.tick();
        change(&mut self.sim.lock())
    }

    /// Reads or changes one VM.
    pub fn with_vm<T>(&self, vmid: VmNumber, code: impl FnOnce(&mut Vm) -> T) -> Option<T> {
        self.sim.tick();
        self.sim.lock().vms.get_mut(&vmid).map(code)
    }

    /// Slots that QEMU really has.
    pub fn disks(&self, vmid: VmNumber) -> Vec<String> {
        self.with_vm(vmid, |vm| vm.devices.keys().cloned().collect())
            .unwrap_or_default()
    }

    /// Holds a VM's config lock on its PVE node for this time on the simulator's clock, as a long operation would.
    pub async fn hold_vm_lock(&self, vmid: VmNumber, time: Duration) -> Result<(), String> {
        let node = self
            .with_vm(vmid, |vm| vm.node.clone())
            .ok_or_else(|| format!("no vm {vmid}"))?;
        let guard = self
            .sim
            .lock_vm(&node, vmid)
            .await
            .map_err(|fail| fail.exit_text())?;
        hold(&self.sim, guard, time);
        Ok(())
    }

    /// Holds the lock around a storage's allocations, as seen from that PVE node.
    pub async fn hold_storage_lock(
        &self,
        node: &str,
        storage: &str,
        time: Duration,
    ) -> Result<(), String> {
        let guard = self
            .sim
            .lock_storage(node, storage)
            .await
            .map_err(|fail| fail.exit_text())?;
        hold(&self.sim, guard, time);
        Ok(())
    }

    /// `qm rescan` of one VM, as on its host; returns what it prints.
    pub async fn rescan(&self, vmid: VmNumber) -> Result<Vec<String>, String> {
        let done = crate::destroy::rescan(&self.sim, vmid).await;
        done.map_err(|fail| fail.exit_text())
    }

    /// A backup (`vzdump`, by root@pam) that holds the VM's `lock: backup` for this time on the simulator's clock; its UPID.
    pub fn backup(&self, vmid: VmNumber, time: Duration) -> Result<String, String> {
        crate::backup::start(&self.sim, vmid, time).map_err(|fail| fail.exit_text())
    }

    /// Starts a VM at once; an error is PVE's text.
    pub fn start_vm(&self, vmid: VmNumber) -> Result<(), String> {
        self.power(vmid, qemu::start)
    }

    pub fn stop_vm(&self, vmid: VmNumber) -> Result<(), String> {
        self.power(vmid, qemu::stop)
    }

    /// Stops the vCPUs: the guest acknowledges no unplug.
    pub fn pause_vm(&self, vmid: VmNumber) -> Result<(), String> {
        self.power(vmid, qemu::pause)
    }

    pub fn resume_vm(&self, vmid: VmNumber) -> Result<(), String> {
        self.power(vmid, qemu::resume)
    }

    fn power(
        &self,
        vmid: VmNumber,
        code: fn(&Sim, &str, VmNumber) -> Result<(), crate::fail::Fail>,
    ) -> Result<(), String> {
        let node = self
            .with_vm(vmid, |vm| vm.node.clone())
            .ok_or_else(|| format!("no vm {vmid}"))?;
        code(&self.sim, &node, vmid).map_err(|fail| fail.exit_text())
    }

    /// Stops listening and takes all devices away.
    pub async fn shutdown(self) {
        self.sim.stop.cancel();
        self.sim.tracker.close();
        if tokio::time::timeout(Duration::from_secs(5), self.sim.tracker.wait())
            .await
            .is_err()
        {
            tracing::warn!("some work did not end in time");
        }
        self.sim.hardware.shutdown();
    }
}

/// Keeps a lock until the time has passed.
pub(crate) fn hold(sim: &Arc<Sim>, guard: OwnedMutexGuard<()>, time: Duration) {
    let inner = sim.clone();
    sim.tracker.spawn(async move {
        inner.clock.sleep(time).await;
        drop(guard);
    });
}

impl Drop for SimHandle {
    fn drop(&mut self) {
        self.sim.stop.cancel();
        self.sim.hardware.shutdown();
    }
}
