//! A row for each step.

use std::time::Duration;

use serde::Serialize;

use crate::cluster::Text;
use crate::text::{line, table};

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// Well.
    Ok,
    /// Not.
    Failed,
    /// Nothing was given to look by.
    NotAsked,
    /// One before it failed.
    NotReached,
}

/// One step.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) step: &'static str,
    pub(super) verdict: Verdict,
    #[serde(serialize_with = "tenths")]
    pub(super) seconds: Duration,
    pub(super) detail: String,
}

/// All of them.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) ok: bool,
    pub(super) class: String,
    pub(super) namespace: String,
    pub(super) run: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) handle: Option<Text>,
    pub(super) steps: Vec<Row>,
}

fn tenths<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((time.as_secs_f64() * 10.0).round() / 10.0)
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "FAILED",
            Self::NotAsked => "not asked",
            Self::NotReached => "not reached",
        }
    }
}

impl Report {
    /// Whether no step failed.
    pub(super) fn is_good(&self) -> bool {
        let good = |row: &Row| matches!(row.verdict, Verdict::Ok | Verdict::NotAsked);
        self.steps.iter().all(good)
    }

    /// For programs.
    pub(super) fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.map_or_else(
            |error| format!("{{\"error\": \"{error}\"}}\n"),
            |text| text + "\n",
        )
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let rows = self.steps.iter().map(|row| {
            let time = match row.verdict {
                Verdict::Ok | Verdict::Failed => format!("{:.1}", row.seconds.as_secs_f64()),
                Verdict::NotAsked | Verdict::NotReached => String::new(),
            };
            let verdict = row.verdict.text().to_owned();
            [row.step.to_owned(), verdict, time, row.detail.clone()]
        });
        let rows: Vec<_> = rows.collect();
        let mut text = table(["STEP", "OUTCOME", "SECONDS", "DETAIL"], &rows);
        let verdict = if self.ok { "works" } else { "FAILED" };
        let (class, run) = (&self.class, &self.run);
        line(
            &mut text,
            format_args!("class {class}: {verdict} (run {run})"),
        );
        text
    }
}
