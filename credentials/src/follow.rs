//! Loads both sources: once, as an init container, or for ever, as a container beside the drivers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::compose::{self, Wanted};
use crate::kubeconfig::{self, Impersonation};
use crate::metrics::Metrics;
use crate::secret::Mounted;
use crate::store::Store;
use crate::{Files, Trouble};

/// How often is looked for a source that is not there yet, and how often that is told.
const LOOK: Duration = Duration::from_secs(2);
const TELL: Duration = Duration::from_mins(1);

/// The operator's Secret and where its files go.
#[derive(Debug)]
pub struct Operator {
    /// Where the Secret is mounted.
    pub folder: PathBuf,
    /// What it has to be.
    pub wanted: Wanted,
    /// Where the config goes.
    pub store: Store,
}

/// The tenant's kubeconfig and where its parts go.
#[derive(Debug)]
pub struct Tenant {
    /// A file of the mounted Secret, which need not be there yet.
    pub source: PathBuf,
    /// Who acts as whom.
    pub impersonations: Vec<Impersonation>,
    /// Where the kubeconfigs go.
    pub store: Store,
}

/// Both sources.
#[derive(Debug)]
pub struct Loader {
    operator: Operator,
    tenant: Option<Tenant>,
    secret: Heard,
    kubeconfig: Heard,
    metrics: Metrics,
}

/// What was told of a source.
#[derive(Debug)]
struct Heard {
    source: &'static str,
    complaint: Option<String>,
    waiting: Option<Waiting>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    since: Instant,
    told: Instant,
}

impl Loader {
    /// Nothing is read yet.
    pub fn new(operator: Operator, tenant: Option<Tenant>, metrics: Metrics) -> Self {
        Self {
            operator,
            tenant,
            secret: Heard::of("secret"),
            kubeconfig: Heard::of("kubeconfig"),
            metrics,
        }
    }

    /// Writes all files once. A kubeconfig that is not there is waited for, as long as `wait` says.
    pub async fn once(mut self, wait: Duration, stop: &CancellationToken) -> Result<(), Trouble> {
        let deadline = Instant::now() + wait;
        self.load_secret()?;
        while !self.load_kubeconfig().await? {
            let source = self.tenant.as_ref().map(|tenant| tenant.source.display());
            let source = source.map(|source| source.to_string()).unwrap_or_default();
            if Instant::now() >= deadline {
                return Err(Trouble::Absent(source));
            }
            if stop.run_until_cancelled(sleep(LOOK)).await.is_none() {
                return Err(Trouble::Absent(source));
            }
        }
        Ok(())
    }

    /// Writes all files and follows their sources until `stop`. It is an error only if there is nothing that could stay
    /// in force.
    pub async fn follow(
        mut self,
        period: Duration,
        stop: &CancellationToken,
    ) -> Result<(), Trouble> {
        loop {
            self.load_secret()?;
            let there = self.load_kubeconfig().await?;
            let pause = if there { period } else { period.min(LOOK) };
            if stop.run_until_cancelled(sleep(pause)).await.is_none() {
                return Ok(());
            }
        }
    }

    /// Whether files of both sources are in force.
    pub fn ready(&self) -> Arc<dyn Fn() -> Result<(), String> + Send + Sync> {
        let config = self.operator.store.clone();
        let tenant = self.tenant.as_ref().map(|tenant| tenant.store.clone());
        Arc::new(move || {
            if config.is_empty() {
                return Err("no config is in force".to_owned());
            }
            match &tenant {
                Some(tenant) if tenant.is_empty() => {
                    Err("the tenant's kubeconfig is waited for".to_owned())
                }
                _ => Ok(()),
            }
        })
    }

    fn load_secret(&mut self) -> Result<(), Trouble> {
        let Operator {
            folder,
            wanted,
            store,
        } = &self.operator;
        let read = Mounted::read(folder).and_then(|mounted| compose::files(&mounted, wanted));
        self.secret.put(store, read, &self.metrics).map(|_| ())
    }

    /// False while there is no kubeconfig yet.
    async fn load_kubeconfig(&mut self) -> Result<bool, Trouble> {
        let Some(Tenant {
            source,
            impersonations,
            store,
        }) = &self.tenant
        else {
            return Ok(true);
        };
        let read = kubeconfig::files(source, impersonations).await;
        self.kubeconfig.put(store, read, &self.metrics)
    }
}

impl Heard {
    const fn of(source: &'static str) -> Self {
        Self {
            source,
            complaint: None,
            waiting: None,
        }
    }

    /// Puts the files in force. False while there is nothing to put and nothing was; an error if there is something
    /// wrong and nothing was.
    fn put(
        &mut self,
        store: &Store,
        read: Result<Files, Trouble>,
        metrics: &Metrics,
    ) -> Result<bool, Trouble> {
        let source = self.source;
        let trouble = match read.and_then(|files| store.put(&files)) {
            Ok(changed) => {
                self.waiting = None;
                metrics.fine(source);
                if changed {
                    metrics.in_force(source);
                    tracing::info!(source, "is in force");
                } else if self.complaint.is_some() {
                    tracing::info!(source, "is again what is in force");
                }
                self.complaint = None;
                return Ok(true);
            }
            Err(trouble) => trouble,
        };
        if !store.is_empty() {
            self.complain(&trouble, metrics);
            return Ok(true);
        }
        if matches!(trouble, Trouble::Absent(_)) {
            self.wait(&trouble);
            return Ok(false);
        }
        Err(trouble)
    }

    /// Once per change.
    fn complain(&mut self, trouble: &Trouble, metrics: &Metrics) {
        let text = trouble.to_string();
        if self.complaint.as_ref() != Some(&text) {
            metrics.refused(self.source);
            tracing::error!(
                source = self.source,
                error = text,
                "can't be used, the former files stay in force"
            );
            self.complaint = Some(text);
        }
    }

    /// At once and then every minute.
    fn wait(&mut self, trouble: &Trouble) {
        let now = Instant::now();
        let since = self.waiting.map_or(now, |waiting| waiting.since);
        if self
            .waiting
            .is_none_or(|waiting| now >= waiting.told + TELL)
        {
            let seconds = now.duration_since(since).as_secs();
            tracing::warn!(source = self.source, seconds, "waiting: {trouble}");
            self.waiting = Some(Waiting { since, told: now });
        }
    }
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
