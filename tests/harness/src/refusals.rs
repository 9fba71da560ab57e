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
        match self.world.leaks() {
            Ok(leaks) => leaks.iter().for_each(|line| self.wrong("log", line)),
            Err(error) => self.wrong("log", &error.to_string()),
        }
        self.failures
    }

    fn wrong(&mut self, what: &str, why: &str) {
        self.failures.push(format!("{what}: {why}"));
    }

    fn discreet(&mut self, what: &str, message: &str) {
        let port = self.world.sim.url().rsplit(':').next().unwrap_or_default();
        for secret in NEVER.into_iter().chain([port]) {
            if tells(message, secret) {
                self.wrong(what, &format!("the message tells {secret:?}: {message}"));
            }
        }
        if message.len() < SHORTEST || message.chars().any(char::is_control) {
            self.wrong(what, &format!("the message is not for people: {message:?}"));
        }
    }
}

/// Whether the text holds these words: not as a part of a longer one, as in a correlation id.
pub fn tells(message: &str, words: &str) -> bool {
    let part_of_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    message.match_indices(words).any(|(at, _)| {
        let before = message.get(..at).and_then(|text| text.chars().next_back());
        let after = message
            .get(at + words.len()..)
            .and_then(|text| text.chars().next());
        let joined_before = part_of_word(words.chars().next()) && part_of_word(before);
        let joined_after = part_of_word(words.chars().next_back()) && part_of_word(after);
        !joined_before && !joined_after
    })
}

#[cfg(test)]
mod tests {
    use super::tells;

    #[test]
    fn a_number_is_told_apart_from_a_part_of_an_id() {
        for (message, told) in [
            ("VM 777 has it", true),
            ("vm-777-disk-0", true),
            ("777", true),
            ("no (id 77712abc)", false),
            ("no (id 1a777bcd)", false),
            ("port 1777", false),
        ] {
            assert_eq!(tells(message, "777"), told, "{message}");
        }
        assert!(tells("at https://10.0.0.1:8006/", "https://"));
        assert!(tells("UPID:pve1:0001", "UPID"));
    }
}
