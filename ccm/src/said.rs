//! A state that is logged when it changes, not each time that it is met.

use std::sync::{Mutex, PoisonError};

/// What was last said about something; nothing while all is well.
#[derive(Debug, Default)]
pub struct Said(Mutex<Option<String>>);

impl Said {
    /// Whether this is something else than before.
    pub fn is_new(&self, now: Option<&str>) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_deref() == now {
            return false;
        }
        *last = now.map(str::to_owned);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_is_new() {
        let said = Said::default();
        assert!(!said.is_new(None), "all was well");
        assert!(said.is_new(Some("down")));
        assert!(!said.is_new(Some("down")));
        assert!(said.is_new(Some("refused")));
        assert!(said.is_new(None));
        assert!(!said.is_new(None));
    }
}
