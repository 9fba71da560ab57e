//! Whether this process is the one of several that acts.

use std::fmt;
use std::sync::{Arc, OnceLock};

type Holds = Box<dyn Fn() -> bool + Send + Sync>;

/// Asked before whatever only the active one of several processes may do. Clones share it; at first it says no.
#[derive(Clone, Default)]
pub struct Active(Arc<OnceLock<Holds>>);

impl Active {
    /// Of a process that is alone.
    pub fn always() -> Self {
        let active = Self::default();
        active.begin(|| true);
        active
    }

    /// From now on `holds` says it, each time anew. There is no second beginning: whoever has lost its turn ends.
    pub fn begin(&self, holds: impl Fn() -> bool + Send + Sync + 'static) {
        if self.0.set(Box::new(holds)).is_err() {
            tracing::debug!("this process was the active one before");
        }
    }

    /// Whether it is this one at this moment.
    pub fn is(&self) -> bool {
        self.0.get().is_some_and(|holds| holds())
    }
}

impl fmt::Debug for Active {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Active").field(&self.is()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn it_is_said_anew_each_time_and_begins_once() {
        let (active, leads) = (Active::default(), Arc::new(AtomicBool::new(true)));
        assert!(!active.is());
        let said = Arc::clone(&leads);
        active.clone().begin(move || said.load(Ordering::Relaxed));
        assert!(active.is());
        leads.store(false, Ordering::Relaxed);
        active.begin(|| true);
        assert!(!active.is());
        assert!(Active::always().is());
    }
}
