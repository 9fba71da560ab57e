//! The way of a request through the checks, in PVE's order (`HTTPServer.pm` `rest_handler`): credentials, route, rights, the hop to the PVE node,
//! parameters, code.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::acl::{self, Who};
use crate::auth;
use crate::carried;
use crate::fail::{ApiResult, Fail};
use crate::faults::RequestEffect;
use crate::hop;
use crate::http::{Reply, Request, form};
use crate::log::Entry;
use crate::quorum;
use crate::router::{Call, Perm, Route, find};
use crate::schema::{self, Param, Raw, RawParams};
use crate::sim::Sim;

/// Answers a request to the API of the PVE node `here`.
pub(crate) async fn answer(sim: Arc<Sim>, here: String, request: Request) -> Option<Reply> {
    sim.tick();
    let path = request.raw_path.clone();
    let mut parts = request.path.iter().map(String::as_str);
    if parts.next() != Some("api2") {
        return Reply::from_fail(&Fail::Text {
            status: 500,
            message: format!("no such file '{path}'\n"),
        });
    }
    let format = parts.next().unwrap_or_default().to_owned();
    let api_path: Vec<String> = parts.map(str::to_owned).collect();
    let mut entry = Entry::new(&request.method, &format!("/{}", api_path.join("/")));
    let result = route(&sim, &here, &request, (&format, &api_path), &mut entry).await;
    let status = result.as_ref().map_or_else(Fail::status, |_| 200);
    sim.log_request(entry, status);
    if status == 401 {
        sim.clock.sleep(Duration::from_secs(3)).await;
    }
    reply(&format, &result)
}

fn reply(format: &str, result: &ApiResult) -> Option<Reply> {
    if format != "extjs" {
        return match result {
            Ok(answer) => Some(Reply::json(200, "OK", &answer.to_json())),
            Err(fail) => Reply::from_fail(fail),
        };
    }
    let mut body = match result {
        Ok(answer) => answer.to_json(),
        Err(fail) => match fail.body() {
            Some(body) => body,
            None => return Reply::from_fail(fail),
        },
    };
    if let Some(map) = body.as_object_mut() {
        map.insert("success".into(), json!(u8::from(result.is_ok())));
        if let Err(fail) = result {
            map.insert("status".into(), json!(fail.status()));
        }
    }
    Some(Reply::json(200, "OK", &body))
}

async fn route(
    sim: &Arc<Sim>,
    here: &str,
    request: &Request,
    (format, path): (&str, &[String]),
    entry: &mut Entry,
) -> ApiResult {
    let method = request.method.as_str();
    let shown = format!("/{}", path.join("/"));
    check_protocol(request, format, &shown)?;
    let found = find(method, path);
    let world = found.as_ref().is_some_and(|(route, _)| route.is_world());
    let who = identify(sim, request, world)?;
    entry.caller = who.id();
    let given = parameters(request)?;
    entry.params = public(&given);
    let Some((route, in_path)) = found else {
        return Err(Fail::not_implemented(method, &shown));
    };
    route.template.clone_into(&mut entry.template);
    let merged = merge(given, &in_path)?;
    let mut call = Call {
        sim: sim.clone(),
        who,
        here: here.to_owned(),
        params: texts(&merged),
    };
    permitted(route, &call)?;
    hop::reach(&call, (method, route.template)).await?;
    let fault = sim.take_fault(method, route.template);
    if let Some(fail) = fault.as_ref().and_then(RequestEffect::before) {
        return Err(fail);
    }
    call.params = schema::verify(&all_params(route), route.extra, &merged)?;
    quorum::gate(sim, (method, route.template), &call).await?;
    let result = run(route, call, fault.clone()).await;
    match fault.as_ref().and_then(RequestEffect::after) {
        Some(fail) => Err(fail),
        None => result,
    }
}

/// What the HTTP server itself refuses.
fn check_protocol(request: &Request, format: &str, shown: &str) -> Result<(), Fail> {
    let method = &request.method;
    let text = |message: String| {
        Err(Fail::Text {
            status: 501,
            message,
        })
    };
    if !["GET", "POST", "PUT", "DELETE"].contains(&method.as_str()) {
        return Err(Fail::Empty {
            status: 501,
            reason: format!("method '{method}' not available"),
        });
    }
    if request.chunked {
        return text("chunked transfer encoding not supported".to_owned());
    }
    if !["json", "extjs"].contains(&format) {
        return text(format!("no formatter for uri {shown}, {format}"));
    }
    Ok(())
}

fn identify(sim: &Sim, request: &Request, world: bool) -> Result<Who, Fail> {
    let (authorization, cookie) = (request.authorization.as_deref(), request.cookie.as_deref());
    match auth::authenticate(&sim.lock(), sim.clock.epoch(), authorization, cookie) {
        Err(_) if world => Ok(Who {
            user: String::new(),
            token: None,
        }),
        other => other,
    }
}

/// Runs an endpoint's code, which goes on if the caller leaves or the proxy gives up.
async fn run(route: &Route, call: Call, fault: Option<RequestEffect>) -> ApiResult {
    let sim = call.sim.clone();
    let what = format!("{} {}", route.method, route.template);
    let daemon = hop::daemon_of(&call, (route.method, route.template));
    let work = (route.handler)(call);
    let inner = sim.clone();
    let load = carried::Carried::request(fault.as_ref());
    let running = sim.tracker.spawn(carried::scope(load, async move {
        if let Some(time) = fault.as_ref().and_then(RequestEffect::delay) {
            inner.clock.sleep(time).await;
        }
        if fault == Some(RequestEffect::Hold) {
            inner.holds.stand(&what).await;
        }
        if let Some(node) = &daemon {
            hop::daemon_goes_on(&inner, node).await;
        }
        let result = work.await;
        if fault == Some(RequestEffect::HoldReply) {
            inner.holds.stand(&what).await;
        }
        if let Some(time) = fault.as_ref().and_then(RequestEffect::delay_of_reply) {
            inner.clock.sleep(time).await;
        }
        result
    }));
    tokio::select! {
        result = running => {
            result.unwrap_or_else(|error| Err(Fail::die(format!("internal error: {error}"))))
        }
        () = sim.clock.sleep(hop::TIMEOUT) => {
            Err(Fail::Empty { status: 596, reason: "Connection timed out".to_owned() })
        }
    }
}

/// Path parameters come without an entry in the endpoint's own list.
fn all_params(route: &Route) -> Vec<Param> {
    let mut params = route.params.clone();
    for part in route
        .template
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    {
        let name = part.trim_end_matches('*');
        if !params.iter().any(|p| p.name == name) {
            params.push(schema::req(name, schema::path_kind(name)));
        }
    }
    params
}

fn texts(params: &RawParams) -> BTreeMap<String, String> {
    let text = |raw: &Raw| match raw {
        Raw::Text(text) => text.clone(),
        Raw::Array(list) => list.join(","),
        Raw::Object => String::new(),
    };
    params
        .iter()
        .map(|(name, raw)| (name.clone(), text(raw)))
        .collect()
}

/// The parameters for the request log, without secrets.
fn public(params: &RawParams) -> BTreeMap<String, String> {
    let secret =
        |name: &str| ["password", "ticket", "otp", "cipassword", "sshkeys"].contains(&name);
    texts(params)
        .into_iter()
        .map(|(name, text)| {
            if secret(&name) {
                (name, "…".to_owned())
            } else {
                (name, text)
            }
        })
        .collect()
}

fn parameters(request: &Request) -> Result<RawParams, Fail> {
    let method = request.method.as_str();
    let mut params = RawParams::new();
    if !request.body.is_empty() {
        if ["GET", "DELETE"].contains(&method) {
            return Err(Fail::Text {
                status: 501,
                message: format!("Unexpected content for method '{method}'"),
            });
        }
        let kind = request.content_type.as_deref().unwrap_or_default();
        let plain = kind.split(';').next().unwrap_or_default().trim();
        params = match plain {
            "" | "application/x-www-form-urlencoded" => {
                form::decode(&String::from_utf8_lossy(&request.body))
            }
            "application/json" => {
                form::decode_json(&request.body).map_err(|message| Fail::Text {
                    status: 500,
                    message,
                })?
            }
            _ => {
                return Err(Fail::Text {
                    status: 506,
                    message: format!("upload 'Content-Type '{kind}' not implemented"),
                });
            }
        };
    }
    params.extend(request.query.clone());
    params.remove("_dc");
    Ok(params)
}

fn merge(mut given: RawParams, in_path: &BTreeMap<String, String>) -> Result<RawParams, Fail> {
    for (name, value) in in_path {
        let value = Raw::Text(value.clone());
        if given.get(name).is_some_and(|other| *other != value) {
            return Err(Fail::param(
                name,
                "duplicate parameter (already defined in URI) with conflicting values!",
            ));
        }
        given.insert(name.clone(), value);
    }
    Ok(given)
}

fn permitted(route: &Route, call: &Call) -> Result<(), Fail> {
    let fill = |template: &str| {
        call.params
            .iter()
            .fold(template.to_owned(), |path, (name, value)| {
                path.replace(&format!("{{{name}}}"), value)
            })
    };
    let state = call.sim.lock();
    let filled = match &route.perm {
        Perm::All(path, _) | Perm::Any(path, _) => fill(path),
        _ => String::new(),
    };
    // A path with other characters is no path at all, not even for root (`AC.pm` normalize_path).
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let held = if filled.chars().all(plain) {
        filled
    } else {
        String::new()
    };
    match &route.perm {
        Perm::All(_, wanted) if held.is_empty() => {
            Err(Fail::denied(&format!(", {}", wanted.join("|"))))
        }
        Perm::User => Ok(()),
        Perm::All(_, wanted) => acl::need_all(&state, &call.who, &held, wanted),
        Perm::Any(_, wanted) => acl::need_any(&state, &call.who, &held, wanted),
        Perm::Root => Err(Fail::denied("user != root@pam")),
        Perm::Custom(check) => {
            drop(state);
            check(call)
        }
    }
}
