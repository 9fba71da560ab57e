//! Tickets of users who log in with a password, and the tokens against forged requests that go with them (`Ticket.pm`). A ticket
//! is `PVE:user:time::signature`, good for two hours.

use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};

use crate::units;

/// Seconds that a ticket is good for, and that clocks may differ.
const LIFETIME: u64 = 7200;
const GRACE: u64 = 300;

/// The cluster's signing keys.
#[derive(Debug)]
pub(crate) struct Logins {
    key: String,
}

impl Logins {
    pub(crate) fn new(key: String) -> Self {
        Self { key }
    }

    fn sign(&self, kind: &str, data: &str) -> String {
        units::hex(&Sha256::digest(format!("{}:{kind}:{data}", self.key)))
    }

    pub(crate) fn ticket(&self, user: &str, now: u64) -> String {
        let data = format!("PVE:{user}:{now:08X}");
        format!("{data}::{}", self.sign("ticket", &data))
    }

    /// The user of a ticket that is genuine and not too old; its text may be percent-encoded, as in a cookie.
    pub(crate) fn user(&self, ticket: &str, now: u64) -> Option<String> {
        let ticket = percent_decode_str(ticket).decode_utf8().ok()?;
        let (data, signature) = ticket.split_once("::")?;
        let mut parts = data.strip_prefix("PVE:")?.split(':');
        let (user, time) = (parts.next()?, parts.next()?);
        let genuine = parts.next().is_none() && signature == self.sign("ticket", data);
        (genuine && fresh(time, now)).then(|| user.to_owned())
    }

    pub(crate) fn csrf_token(&self, user: &str, now: u64) -> String {
        format!(
            "{now:08X}:{}",
            self.sign("csrf", &format!("{now:08X}:{user}"))
        )
    }

    pub(crate) fn csrf_fits(&self, user: &str, token: &str, now: u64) -> bool {
        token.split_once(':').is_some_and(|(time, signature)| {
            signature == self.sign("csrf", &format!("{time}:{user}")) && fresh(time, now)
        })
    }
}

fn fresh(time: &str, now: u64) -> bool {
    u64::from_str_radix(time, 16).is_ok_and(|time| time <= now + GRACE && now <= time + LIFETIME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_for_two_hours_and_for_its_own_user_only() {
        let logins = Logins::new("k".to_owned());
        let ticket = logins.ticket("root@pam", 1000);
        assert_eq!(
            logins.user(&ticket, 1000 + LIFETIME).as_deref(),
            Some("root@pam")
        );
        assert_eq!(logins.user(&ticket, 1001 + LIFETIME), None);
        assert_eq!(logins.user(&ticket.replace("root", "toor"), 1000), None);
        assert_eq!(Logins::new("other".to_owned()).user(&ticket, 1000), None);
        let token = logins.csrf_token("root@pam", 1000);
        assert!(logins.csrf_fits("root@pam", &token, 1000));
        assert!(!logins.csrf_fits("csi@pve", &token, 1000));
    }
}
