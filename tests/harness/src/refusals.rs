//! A table of calls that must be refused: each with a right code, a discreet message, and nothing changed on PVE.

use std::fmt::Debug;

use tonic::{Code, Status};

use crate::truth::{Truth, mutations};
use crate::world::World;

/// Shortest message that can say something.
const SHORTEST: usize = 8;
/// What no message to the tenant may hold, whatever the case: other guests, our identity on PVE, PVE's own words.
const NEVER: [&str; 14] = [
    "csi@pve",
    "tenant-a",
    "7a1c1a52",
    "127.0.0.1",
    "https://",
    "api2",
    "777",
    "other-tenant",
    "qemu/",
    "UPID",
    "/var/lib/",
    "scsi0",
    "Parameter verification",
    "Configuration file",
];

/// Collects what is wrong with the answers to bad input.
#[derive(Debug)]
pub struct Refusals<'a> {
    world: &'a World,
    before: Truth,
    failures: Vec<String>,
}

impl<'a> Refusals<'a> {
    /// The state of PVE now is the one that has to stay.
    pub fn new(world: &'a World) -> Self {
        world.sim.clear_requests();
        Self {
            world,
            before: Truth::of(&world.sim),
            failures: Vec::new(),
        }
    }

    /// One call: `right` are the codes that are right for it.
    pub fn row<T: Debug>(&mut self, what: &str, answer: Result<T, Status>, right: &[Code]) {
        let changed = mutations(&self.world.sim.requests());
        if !changed.is_empty() {
            self.wrong(what, &format!("PVE was told to change: {changed:?}"));
        }
        self.row_after_a_write(what, answer, right);
    }

    /// As [`Refusals::row`] where only PVE's refusal of a write can tell.
    pub fn row_after_a_write<T: Debug>(
        &mut self,
        what: &str,
        answer: Result<T, Status>,
        right: &[Code],
    ) {
        self.world.sim.clear_requests();
        match answer {
            Ok(answer) => self.wrong(what, &format!("accepted: {answer:?}")),
            Err(status) => {
                self.discreet(what, status.message());
                if !right.contains(&status.code()) {
                    self.wrong(what, &format!("{status:?}, right is {right:?}"));
                }
            }
        }
    }

    /// Everything that was wrong, with what changed on PVE.
    pub fn failures(mut self) -> Vec<String> {
        let after = Truth::of(&self.world.sim);
        if after.disks() != self.before.disks() {
            let change = format!("{:?} became {:?}", self.before.disks(), after.disks());
            self.wrong("disks", &change);
        }
        for violation in after.violations() {
            self.wrong("state", &violation);
        }
        self.failures
    }

    fn wrong(&mut self, what: &str, why: &str) {
        self.failures.push(format!("{what}: {why}"));
    }

    fn discreet(&mut self, what: &str, message: &str) {
        let port = self.world.sim.url().rsplit(':').next().unwrap_or_default();
        for secret in NEVER.into_iter().chain([port]) {
            if message.contains(secret) {
                self.wrong(what, &format!("the message tells {secret:?}: {message}"));
            }
        }
        if message.len() < SHORTEST || message.chars().any(char::is_control) {
            self.wrong(what, &format!("the message is not for people: {message:?}"));
        }
    }
}
