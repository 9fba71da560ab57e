//! Waiting for what others do.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::{Instant, sleep};

const PAUSE: Duration = Duration::from_millis(50);

/// Asks until there is an answer, and says how long it took. Errors of single attempts count as "not yet"; the last one is told at the deadline.
pub async fn eventually<T, F>(what: &str, limit: Duration, mut ask: F) -> Result<(T, Duration)>
where
    F: AsyncFnMut() -> Result<Option<T>>,
{
    let start = Instant::now();
    loop {
        let last = match ask().await {
            Ok(Some(answer)) => return Ok((answer, start.elapsed())),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if start.elapsed() >= limit {
            let missed = format!("{what}: not within {limit:?}");
            match last {
                Some(error) => return Err(error).context(missed),
                None => bail!(missed),
            }
        }
        sleep(PAUSE).await;
    }
}

/// Waits until a file has exactly this content.
pub async fn wait_content(path: &Path, wanted: &str) -> Result<()> {
    let what = format!("{wanted:?} in {}", path.display());
    eventually(&what, Duration::from_secs(10), async || {
        Ok((std::fs::read_to_string(path)? == wanted).then_some(()))
    })
    .await?;
    Ok(())
}
