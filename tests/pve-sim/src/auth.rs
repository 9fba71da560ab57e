//! Who is calling: API tokens and tickets (`AccessControl.pm`, `HTTPServer.pm` `auth_handler`). Every refusal looks the same to the
//! caller.

use crate::acl::Who;
use crate::fail::Fail;
use crate::http::{Request, form};
use crate::sim::Sim;
use crate::state::User;

fn empty(reason: &str) -> Fail {
    Fail::Empty {
        status: 401,
        reason: reason.to_owned(),
    }
}

fn refused() -> Fail {
    empty("Authentication failed!")
}

/// The ticket of the cookie, or of the `Authorization` header.
fn ticket(request: &Request) -> Option<&str> {
    let named = |text: &'_ str| -> bool { text.starts_with("PVEAuthCookie=") };
    let cookies = request.cookie.iter().flat_map(|text| text.split(';'));
    cookies
        .map(str::trim)
        .chain(request.authorization.as_deref())
        .find(|text| named(text))
        .and_then(|text| text.strip_prefix("PVEAuthCookie="))
}

fn api_token(request: &Request) -> Option<String> {
    let text = request.authorization.as_deref()?;
    let text = text.strip_prefix("PVEAPIToken")?.strip_prefix(['=', ' '])?;
    Some(form::unescape(text.split(';').next().unwrap_or_default()))
}

/// Whether the caller presents an API token, good or not. A ticket takes precedence.
pub(crate) fn token_given(request: &Request) -> bool {
    ticket(request).is_none() && api_token(request).is_some()
}

/// Reads the credentials; a ticket needs its token against forged requests for everything but GET.
pub(crate) fn authenticate(sim: &Sim, request: &Request) -> Result<Who, Fail> {
    let now = sim.clock.epoch();
    if let Some(ticket) = ticket(request) {
        let user = sim.logins.user(ticket, now).ok_or_else(refused)?;
        if !sim
            .lock()
            .users
            .get(&user)
            .is_some_and(|user| usable(user, now))
        {
            return Err(refused());
        }
        let csrf = request.csrf.as_deref().unwrap_or_default();
        if request.method != "GET" && !sim.logins.csrf_fits(&user, csrf, now) {
            return Err(empty("Permission denied - invalid csrf token"));
        }
        return Ok(Who { user, token: None });
    }
    let text = api_token(request).ok_or_else(|| empty("No ticket"))?;
    let (id, secret) = text.split_once('=').ok_or_else(refused)?;
    let (user, token) = id.split_once('!').ok_or_else(refused)?;
    let state = sim.lock();
    let account = state
        .users
        .get(user)
        .filter(|user| usable(user, now))
        .ok_or_else(refused)?;
    let found = account.tokens.get(token).ok_or_else(refused)?;
    if found.secret != secret || expired(found.expire, now) {
        return Err(refused());
    }
    Ok(Who {
        user: user.to_owned(),
        token: Some(token.to_owned()),
    })
}

fn expired(expire: u64, now: u64) -> bool {
    expire != 0 && expire < now
}

/// Enabled and not expired (`check_user_enabled`).
pub(crate) fn usable(user: &User, now: u64) -> bool {
    user.enabled && !expired(user.expire, now)
}

/// The user of a login, if the password (or a good ticket of the same user in its place) fits.
pub(crate) fn login(sim: &Sim, user: &str, password: &str) -> Option<String> {
    let now = sim.clock.epoch();
    let state = sim.lock();
    let account = state.users.get(user).filter(|user| usable(user, now))?;
    let by_ticket = || {
        sim.logins
            .user(password, now)
            .is_some_and(|owner| owner == user)
    };
    let fits = account
        .password
        .as_deref()
        .is_some_and(|known| known == password);
    (fits || by_ticket()).then(|| user.to_owned())
}
