//! Who is calling: API tokens (`AccessControl.pm`). Every refusal looks the same to the caller.

use crate::acl::Who;
use crate::fail::Fail;
use crate::http::form;
use crate::state::State;

/// Reads the `Authorization` header (or the ticket cookie, which takes precedence).
pub(crate) fn authenticate(
    state: &State,
    now: u64,
    authorization: Option<&str>,
    cookie: Option<&str>,
) -> Result<Who, Fail> {
    let refused = || Fail::Empty {
        status: 401,
        reason: "Authentication failed!".to_owned(),
    };
    if cookie.is_some_and(|c| {
        c.split(';')
            .any(|part| part.trim().starts_with("PVEAuthCookie="))
    }) {
        return Err(refused());
    }
    let text =
        authorization.and_then(|text| text.strip_prefix("PVEAPIToken")?.strip_prefix(['=', ' ']));
    let Some(text) = text else {
        return Err(Fail::Empty {
            status: 401,
            reason: "No ticket".to_owned(),
        });
    };
    let text = form::unescape(text.split(';').next().unwrap_or_default());
    let (id, secret) = text.split_once('=').ok_or_else(refused)?;
    let (user, token) = id.split_once('!').ok_or_else(refused)?;
    let account = state
        .users
        .get(user)
        .filter(|account| account.enabled)
        .ok_or_else(refused)?;
    let found = account.tokens.get(token).ok_or_else(refused)?;
    if found.secret != secret || (found.expire != 0 && found.expire < now) {
        return Err(refused());
    }
    Ok(Who {
        user: user.to_owned(),
        token: Some(token.to_owned()),
    })
}
