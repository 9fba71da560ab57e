//! The real helm, and what it makes of a chart.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, anyhow, bail, ensure};
use harness::ccm::management::documents;
use harness::requirements::{peer, skipped};
use serde_json::Value;
use tempfile::TempDir;

/// One of the two charts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Half {
    Management,
    Tenant,
}

pub(crate) const HALVES: [Half; 2] = [Half::Management, Half::Tenant];

/// helm, with caches and settings of its own.
#[derive(Debug)]
pub(crate) struct Helm {
    program: PathBuf,
    home: TempDir,
}

/// What a chart became.
#[derive(Debug)]
pub(crate) struct Rendered {
    /// As helm wrote it.
    pub(crate) text: String,
    /// Its objects, hooks too.
    pub(crate) objects: Vec<Value>,
}

// === impl Half ===

impl Half {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Management => "pve-cloud",
            Self::Tenant => "pve-cloud-tenant",
        }
    }

    /// The namespace that its objects are rendered for.
    pub(crate) fn namespace(self) -> &'static str {
        match self {
            Self::Management => "tenant-a",
            Self::Tenant => "pve-cloud",
        }
    }

    pub(crate) fn folder(self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../deploy/charts")
            .join(self.name())
    }

    /// The values of this name in its `ci` folder.
    pub(crate) fn values(self, name: &str) -> PathBuf {
        self.folder().join(format!("ci/{name}-values.yaml"))
    }

    /// One YAML file of the chart.
    pub(crate) fn read(self, file: &str) -> Result<Value> {
        let path = self.folder().join(file);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let mut all = documents(&text)?;
        ensure!(all.len() == 1, "{file} has {} documents", all.len());
        Ok(all.remove(0))
    }
}

// === impl Helm ===

impl Helm {
    /// The one of tests/tools; else records that `test` is skipped, and why.
    pub(crate) fn find(test: &str) -> Result<Option<Self>> {
        match peer("cluster", "helm") {
            Ok(program) => Ok(Some(Self {
                program,
                home: TempDir::new()?,
            })),
            Err(reason) => {
                skipped(test, &reason);
                Ok(None)
            }
        }
    }

    /// A command of helm that knows nothing of this machine's user.
    #[expect(clippy::disallowed_methods, reason = "the peer is a program")]
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        let home = self.home.path();
        command
            .env_clear()
            .env("HOME", home)
            .env("HELM_CACHE_HOME", home.join("cache"))
            .env("HELM_CONFIG_HOME", home.join("config"))
            .env("HELM_DATA_HOME", home.join("data"));
        command
    }

    /// `helm template` with more arguments.
    pub(crate) fn template(&self, half: Half, arguments: &[String]) -> Result<Output> {
        let mut command = self.command();
        command
            .args(["template", "tenant-a"])
            .arg(half.folder())
            .args(["--namespace", half.namespace()])
            .args(arguments);
        Ok(command.output()?)
    }

    /// What the chart becomes.
    pub(crate) fn rendered(&self, half: Half, arguments: &[String]) -> Result<Rendered> {
        let output = self.template(half, arguments)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success() && said.is_empty(),
            "helm template {}: {said}",
            half.name()
        );
        let text = String::from_utf8(output.stdout)?;
        let objects = documents(&text)?;
        let objects = objects.into_iter().filter(|one| !one.is_null()).collect();
        Ok(Rendered { text, objects })
    }

    /// What it becomes of the values of this name. helm runs once for each.
    pub(crate) fn of_values(&self, half: Half, name: &str) -> Result<Arc<Rendered>> {
        static KNOWN: Mutex<BTreeMap<(Half, String), Arc<Rendered>>> = Mutex::new(BTreeMap::new());
        let mut known = KNOWN
            .lock()
            .map_err(|_| anyhow!("another test has panicked"))?;
        let at = (half, name.to_owned());
        if let Some(rendered) = known.get(&at) {
            return Ok(Arc::clone(rendered));
        }
        let rendered = Arc::new(self.rendered(half, &values_of(half, name))?);
        known.insert(at, Arc::clone(&rendered));
        Ok(rendered)
    }

    /// What helm says when it refuses these `--set` on top of the default values.
    pub(crate) fn refusal(&self, half: Half, sets: &[&str]) -> Result<String> {
        let output = self.template(half, &with_sets(half, sets))?;
        if output.status.success() {
            bail!("{} takes {sets:?}", half.name());
        }
        Ok(String::from_utf8(output.stderr)?)
    }
}

/// Arguments for the values of a name.
pub(crate) fn values_of(half: Half, name: &str) -> Vec<String> {
    vec![format!("--values={}", half.values(name).display())]
}

/// Arguments for the default values and these `--set`.
pub(crate) fn with_sets(half: Half, sets: &[&str]) -> Vec<String> {
    let sets = sets.iter().map(|set| format!("--set={set}"));
    values_of(half, "default").into_iter().chain(sets).collect()
}
