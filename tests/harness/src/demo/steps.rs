//! What the demo says, and when it is told to end.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

/// Prints one line per step: seconds since the step before, PVE requests, what was done.
#[derive(Debug)]
pub struct Steps {
    last: Instant,
    started: Instant,
}

impl Default for Steps {
    fn default() -> Self {
        say("  seconds  PVE requests");
        let now = Instant::now();
        Self {
            last: now,
            started: now,
        }
    }
}

impl Steps {
    /// A step has ended and took PVE this many requests.
    pub fn done(&mut self, requests: usize, what: &str) {
        let now = Instant::now();
        let seconds = (now - self.last).as_secs_f64();
        say(&format!("{seconds:9.3}  {requests:12}  {what}"));
        self.last = now;
    }

    /// The last lines.
    pub fn finish(&self, what: &str) {
        say(&format!(
            "{:9.3}  in all",
            self.started.elapsed().as_secs_f64()
        ));
        say(&format!("{what}: OK"));
    }
}

/// One line for who watches.
#[expect(clippy::print_stdout, reason = "the demo is there to be read")]
pub fn say(line: &str) {
    println!("{line}");
}

/// Ctrl-C or SIGTERM, from now on: neither ends the program by itself any more.
pub(super) fn interrupted() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
