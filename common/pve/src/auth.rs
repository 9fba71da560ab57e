//! Puts the API token on each request, and stays quiet while PVE refuses it.
//!
//! PVE delays each 401 by 3 s (`AnyEvent.pm` 1612) and logs it; a controller that hammers on would look like a
//! break-in. **Guarantees:** after a 401 the token is read again, once; if it is another one the request is repeated
//! with it (a 401 has no effect), else no request is sent for a minute, then one. In that minute the token is read
//! again at most every 5 s, so that a repaired Secret works at once.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use secrecy::ExposeSecret;
use tokio::time::Instant;

use crate::config::{Token, TokenSource};
use crate::error::ConfigError;
use crate::request::{ApiRequest, Credentials};
use crate::transport::{Cause, Exchange, Phase, Reply, TransportError};

const QUIET: Duration = Duration::from_mins(1);
const READ_AGAIN: Duration = Duration::from_secs(5);
const STRUCK: &str = "***";

/// Adds the token.
pub(crate) struct Authorize<S> {
    inner: S,
    source: TokenSource,
    state: Mutex<State>,
}

struct State {
    token: Token,
    header: Credentials,
    generation: u64,
    refused: Option<Instant>,
    read: Instant,
}

/// Headers and the token's number that they were made of.
type Current = (Credentials, u64);

impl<S> fmt::Debug for Authorize<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorize(redacted)")
    }
}

impl<S> Authorize<S> {
    pub(crate) fn new(inner: S, source: TokenSource) -> Result<Self, ConfigError> {
        let token = source().map_err(ConfigError::Token)?;
        let header = header(&token).ok_or_else(|| ConfigError::Token("not usable".to_owned()))?;
        let state = State {
            token,
            header,
            generation: 0,
            refused: None,
            read: Instant::now(),
        };
        Ok(Self {
            inner,
            source,
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The header to send, unless its token was refused within the last minute.
    fn current(&self) -> Result<Current, TransportError> {
        let mut state = self.state();
        let now = Instant::now();
        if let Some(refused) = state.refused {
            let changed = now >= state.read + READ_AGAIN && state.read_again(&self.source, now);
            let over = now >= refused + QUIET;
            if over {
                // One request asks; the others wait for what it hears.
                state.refused = Some(now);
            }
            if !changed && !over {
                let text = "the token was refused less than a minute ago";
                return Err(TransportError::new(Phase::NotSent, Cause::Refused, text));
            }
        }
        Ok((state.header.clone(), state.generation))
    }

    fn accepted(&self, generation: u64) {
        let mut state = self.state();
        if state.generation == generation {
            state.refused = None;
        }
    }

    /// The reply without the token's secret, which a proxy on the way may have echoed: errors quote what PVE said.
    fn struck(&self, mut reply: Reply) -> Reply {
        let state = self.state();
        let secret = state.token.secret.expose_secret();
        if secret.is_empty() {
            return reply;
        }
        if reply.reason.contains(secret) {
            reply.reason = reply.reason.replace(secret, STRUCK);
        }
        let needle = secret.as_bytes();
        if reply.body.windows(needle.len()).any(|part| part == needle) {
            reply.body = String::from_utf8_lossy(&reply.body)
                .replace(secret, STRUCK)
                .into();
        }
        reply
    }

    /// After a 401: a newer header to try with, if there is one.
    fn refused(&self, generation: u64) -> Option<Current> {
        let mut state = self.state();
        let now = Instant::now();
        let newer = state.generation != generation || state.read_again(&self.source, now);
        if newer {
            return Some((state.header.clone(), state.generation));
        }
        state.refused = Some(now);
        None
    }
}

impl State {
    /// Reads the token; true if it is another one.
    fn read_again(&mut self, source: &TokenSource, now: Instant) -> bool {
        self.read = now;
        let token = match source() {
            Ok(token) => token,
            Err(reason) => {
                tracing::warn!(reason, "token can't be read again");
                return false;
            }
        };
        let Some(header) = header(&token).filter(|_| !token.same(&self.token)) else {
            return false;
        };
        self.token = token;
        self.header = header;
        self.generation += 1;
        self.refused = None;
        true
    }
}

/// `PVEAPIToken=USER@REALM!NAME=SECRET`, or `PVEAuthCookie=TICKET` (`AnyEvent.pm` 1573): a ticket holds nothing that PVE would
/// unescape.
fn header(token: &Token) -> Option<Credentials> {
    let secret = token.secret.expose_secret();
    let text = if token.id.contains('!') {
        format!("PVEAPIToken={}={secret}", token.id)
    } else {
        format!("PVEAuthCookie={secret}")
    };
    let csrf = match &token.csrf {
        Some(csrf) => Some(sensitive(csrf.expose_secret())?),
        None => None,
    };
    Some(Credentials {
        authorization: sensitive(&text)?,
        csrf,
    })
}

fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::try_from(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

impl<S: Exchange> Exchange for Authorize<S> {
    async fn send(&self, request: &ApiRequest) -> Result<Reply, TransportError> {
        let (header, generation) = self.current()?;
        let reply = self.struck(self.inner.send(&request.authorized(header)).await?);
        if reply.status != 401 {
            self.accepted(generation);
            return Ok(reply);
        }
        let Some((header, generation)) = self.refused(generation) else {
            return Ok(reply);
        };
        let reply = self.struck(self.inner.send(&request.authorized(header)).await?);
        if reply.status == 401 {
            self.state().refused = Some(Instant::now());
        } else {
            self.accepted(generation);
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ONCE, READ, Script, ok, reply, request, status, token};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::time::advance;

    /// A secret that is replaced by hand, and how often it was read.
    #[derive(Clone)]
    struct Secret(Arc<(Mutex<String>, AtomicUsize)>);

    impl Secret {
        fn new(secret: &str) -> Self {
            Self(Arc::new((
                Mutex::new(secret.to_owned()),
                AtomicUsize::new(0),
            )))
        }

        fn source(&self) -> TokenSource {
            let Self(shared) = self.clone();
            Arc::new(move || {
                shared.1.fetch_add(1, Ordering::Relaxed);
                Ok(token(&shared.0.lock().unwrap()))
            })
        }

        fn replace(&self, secret: &str) {
            secret.clone_into(&mut self.0.0.lock().unwrap());
        }

        fn reads(&self) -> usize {
            self.0.1.load(Ordering::Relaxed)
        }
    }

    fn sent(script: &Script) -> Vec<String> {
        let header = |request: &ApiRequest| {
            request
                .credentials()
                .unwrap()
                .authorization
                .to_str()
                .unwrap()
                .to_owned()
        };
        script.seen().iter().map(header).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_token_is_read_again_and_a_new_one_used_at_once() {
        let (secret, script) = (Secret::new("old"), Script::new([status(401), ok()]));
        let authorize = Authorize::new(script.clone(), secret.source()).unwrap();
        secret.replace("new");
        assert_eq!(authorize.send(&request(&ONCE)).await, ok());
        assert_eq!(
            sent(&script),
            ["PVEAPIToken=csi@pve!ctl=old", "PVEAPIToken=csi@pve!ctl=new"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn pve_is_left_alone_for_a_minute_after_it_refused_the_token() {
        let (secret, script) = (Secret::new("bad"), Script::new([status(401)]));
        let authorize = Authorize::new(script.clone(), secret.source()).unwrap();
        assert_eq!(authorize.send(&request(&READ)).await.unwrap().status, 401);
        for _ in 0..59 {
            advance(Duration::from_secs(1)).await;
            let error = authorize.send(&request(&READ)).await.unwrap_err();
            assert_eq!((error.phase, error.cause), (Phase::NotSent, Cause::Refused));
        }
        assert_eq!(script.count(), 1);
        assert!(secret.reads() <= 2 + 12, "{}", secret.reads());
        advance(Duration::from_secs(1)).await;
        assert_eq!(authorize.send(&request(&READ)).await.unwrap().status, 401);
        assert!(authorize.send(&request(&READ)).await.is_err());
        assert_eq!(script.count(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_repaired_secret_ends_the_silence() {
        let (secret, script) = (Secret::new("bad"), Script::new([status(401), ok()]));
        let authorize = Authorize::new(script.clone(), secret.source()).unwrap();
        authorize.send(&request(&READ)).await.unwrap();
        secret.replace("good");
        advance(Duration::from_secs(6)).await;
        assert_eq!(authorize.send(&request(&READ)).await, ok());
        assert_eq!(authorize.send(&request(&READ)).await, ok());
    }

    #[tokio::test(start_paused = true)]
    async fn no_secret_is_printed() {
        let secret = Secret::new("hunter2");
        let script = Script::new([ok()]);
        let authorize = Authorize::new(script.clone(), secret.source()).unwrap();
        authorize.send(&request(&READ)).await.unwrap();
        let printed = format!("{authorize:?} {:?} {:?}", script.seen(), token("hunter2"));
        assert!(!printed.contains("hunter2"), "{printed}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_that_is_echoed_is_struck_out_of_the_reply() {
        let echo = reply(
            500,
            "bad hunter2",
            r#"{"data":null,"message":"no hunter2, hunter2\n"}"#,
        );
        let script = Script::new([Ok(echo)]);
        let authorize = Authorize::new(script, Secret::new("hunter2").source()).unwrap();
        let seen = authorize.send(&request(&READ)).await.unwrap();
        assert_eq!(seen.reason, "bad ***");
        assert_eq!(seen.body, r#"{"data":null,"message":"no ***, ***\n"}"#);
    }

    #[tokio::test]
    async fn a_ticket_goes_as_it_is_and_has_its_token_against_forged_requests_beside_it() {
        let script = Script::new([ok()]);
        let ticket = || {
            Ok(Token {
                id: "root@pam".to_owned(),
                secret: "PVE:root@pam:1::a+/=".to_owned().into(),
                csrf: Some("1:x".to_owned().into()),
            })
        };
        let authorize = Authorize::new(script.clone(), Arc::new(ticket)).unwrap();
        authorize.send(&request(&ONCE)).await.unwrap();
        let seen = script.seen();
        let credentials = seen[0].credentials().unwrap();
        assert_eq!(
            credentials.authorization,
            "PVEAuthCookie=PVE:root@pam:1::a+/="
        );
        assert_eq!(credentials.csrf.as_ref().unwrap(), "1:x");
        assert!(!format!("{credentials:?}").contains("a+/="));
    }
}
