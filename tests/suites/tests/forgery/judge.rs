//! What has to hold after each forged request.

use harness::two_tenants::{Bravo, OWN, TwoTenants, beyond_alpha, bravo};
use harness::world::TOKEN;
use pve_sim::State;
use tonic::{Code, Status};

use crate::Due;
use crate::calls::{Answer, Call};

/// What no text for the tenant may hold: our identity on PVE, PVE's own words, our other VMs.
const NEVER: [&str; 24] = [
    "csi@pve",
    "tenant-a",
    "127.0.0.1",
    "https://",
    "api2",
    "qemu/",
    "upid",
    "/var/lib/",
    "/dev/",
    "scsi0",
    "smbios",
    "parameter verification",
    "configuration file",
    "permission check",
    "datastore.",
    "vm.audit",
    "vm.config",
    "pool.audit",
    "/vms/",
    "/storage/",
    "/pool/",
    "administrator",
    "digest",
    "vmid",
];
/// By which anything of the other tenant is told.
const BRAVO: [&str; 4] = ["bravo", "77201", "77202", "78888"];

/// The codes with which a forgery is refused. None of them says "not yet": `UNAVAILABLE` only of a VM that the token can't
/// see.
const REFUSALS: [Code; 6] = [
    Code::InvalidArgument,
    Code::PermissionDenied,
    Code::NotFound,
    Code::FailedPrecondition,
    Code::AlreadyExists,
    Code::Unavailable,
];

/// Judges requests one after another, in a world that is the same for each.
#[derive(Debug)]
pub(crate) struct Judge<'a> {
    tenants: &'a TwoTenants,
    state: State,
    bravo: Bravo,
    counted: u64,
    /// How many were judged.
    pub(crate) cases: usize,
    /// How many of them were refused.
    pub(crate) refused: usize,
    /// What was wrong.
    pub(crate) failures: Vec<String>,
}

impl<'a> Judge<'a> {
    /// The state of now is the one that has to stay.
    pub(crate) async fn new(tenants: &'a TwoTenants) -> Self {
        Self {
            tenants,
            state: tenants.world.sim.state(),
            bravo: tenants.bravo(),
            counted: count(tenants).await,
            cases: 0,
            refused: 0,
            failures: Vec::new(),
        }
    }

    /// Sends one request and judges what came of it.
    pub(crate) async fn case(&mut self, call: &Call, said: &str, due: Due) {
        let sim = &self.tenants.world.sim;
        sim.clear_requests();
        let answer = call.send(&self.tenants.csi()).await;
        self.cases += 1;
        let mut wrong = Vec::new();
        self.written(&answer, &mut wrong);
        ended(call, due, &answer, &mut wrong);
        told(said, &answer, &mut wrong);
        if due == Due::NoVolume && !sim.requests().is_empty() {
            wrong.push(format!("asked PVE: {:?}", sim.requests()));
        }
        self.is_counted(&answer, &mut wrong).await;
        self.made(&answer, &mut wrong);
        if !wrong.is_empty() {
            let said: String = said.chars().take(300).collect();
            let what = format!("{} {said}: {due:?}", call.rpc());
            self.failures.push(format!("{what}, {wrong:?}, {answer:?}"));
        }
        let kept = self.state.clone();
        sim.edit(|state| *state = kept);
    }

    /// Nothing of a refused request reaches PVE, and nothing of the other tenant's is named in any that does.
    fn written(&mut self, answer: &Result<Answer, Status>, wrong: &mut Vec<String>) {
        let sim = &self.tenants.world.sim;
        let requests = sim.requests();
        wrong.extend(
            requests
                .iter()
                .filter_map(beyond_alpha)
                .map(|what| format!("asked of PVE: {what}")),
        );
        let state = sim.state();
        if Bravo::of(&state) != self.bravo {
            wrong.push("the other tenant's things have changed".to_owned());
        }
        let refused = !matches!(answer, Ok(Answer::Done(..)));
        let writes = requests
            .iter()
            .filter(|request| request.method != "GET")
            .count();
        if refused && (writes > 0 || state != self.state) {
            wrong.push(format!("refused after {writes} writes"));
        }
    }

    /// A volume that was made is a new one, in the tenant's own name.
    fn made(&mut self, answer: &Result<Answer, Status>, wrong: &mut Vec<String>) {
        let Ok(Answer::Done(_, Some(handle))) = answer else {
            return;
        };
        let named = |volume: &pve_sim::Volume| format!("{}:{}", volume.storage, volume.name);
        let known = |volid: &str| {
            self.state
                .volumes
                .iter()
                .any(|volume| named(volume) == volid)
        };
        let volid = harness::truth::volid(handle);
        let ours = handle.starts_with("r1/") && volid.starts_with(&format!("{OWN}:vm-999"));
        if !ours || known(&volid) {
            wrong.push(format!("answered {handle}"));
        }
    }

    /// What policy or form forbids is counted, once.
    async fn is_counted(&mut self, answer: &Result<Answer, Status>, wrong: &mut Vec<String>) {
        let now = count(self.tenants).await;
        let by = now.saturating_sub(self.counted);
        self.counted = now;
        let right = match answer {
            Ok(_) => by == 0,
            Err(status) => match status.code() {
                Code::InvalidArgument | Code::PermissionDenied => by == 1,
                Code::FailedPrecondition => by <= 1,
                _ => by == 0,
            },
        };
        if !right {
            wrong.push(format!("counted {by} times"));
        }
        self.refused += usize::from(answer.is_err());
    }
}

async fn count(tenants: &TwoTenants) -> u64 {
    let refusals = tenants.refusals().await.unwrap();
    refusals.into_iter().map(|(_, count)| count).sum()
}

fn ended(call: &Call, due: Due, answer: &Result<Answer, Status>, wrong: &mut Vec<String>) {
    let right = match (due, answer) {
        (Due::Harmless, Ok(_)) | (Due::Refused, Ok(Answer::Objected(_))) => true,
        (Due::Harmless | Due::Refused, Err(status)) => REFUSALS.contains(&status.code()),
        (Due::Refused, Ok(Answer::Done(..))) => false,
        (Due::NoVolume, Ok(_)) => matches!(call, Call::Delete(_) | Call::Unpublish(_)),
        (Due::NoVolume, Err(status)) => {
            status.code() == Code::NotFound && !matches!(call, Call::Delete(_) | Call::Unpublish(_))
        }
    };
    if !right {
        wrong.push("it must not end so".to_owned());
    }
}

/// What the tenant reads holds nothing but its own words, closed phrases and an id.
fn told(said: &str, answer: &Result<Answer, Status>, wrong: &mut Vec<String>) {
    let (text, never) = match answer {
        Ok(Answer::Done(text, _)) => (text.as_str(), NEVER.get(..0)),
        Ok(Answer::Objected(text)) => (text.as_str(), NEVER.get(..)),
        Err(status) => (status.message(), NEVER.get(..)),
    };
    let text = text.split(" (id ").next().unwrap_or_default();
    if answer.is_err() && (text.len() < 8 || text.chars().any(char::is_control)) {
        wrong.push("the text is not for people".to_owned());
    }
    let (text, said) = (text.to_lowercase(), said.to_lowercase());
    let secrets = [TOKEN.0, TOKEN.1, bravo::TOKEN.1];
    for words in never
        .unwrap_or_default()
        .iter()
        .chain(&BRAVO)
        .chain(&secrets)
    {
        if text.contains(words) && !said.contains(words) {
            wrong.push(format!("the text tells {words:?}"));
        }
    }
}
