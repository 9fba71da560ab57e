//! The way of a request through the checks, in PVE's order (`HTTPServer.pm` `rest_handler`): credentials, route, rights, the hop to the PVE node,
//! parameters, code.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::acl::Who;
use crate::auth;
use crate::carried;
use crate::endpoints::{self, Endpoint};
use crate::fail::{ApiResult, Fail};
use crate::faults::RequestEffect;
use crate::hop;
use crate::http::{Reply, Request, form};
use crate::log::Entry;
use crate::older;
use crate::permit;
use crate::quorum;
use crate::router::{Call, Route, find};
use crate::schema::{Raw, RawParams};
use crate::sim::Sim;
use crate::verify;

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
    sim.clock.sleep(sim.timing.request).await;
    tell(&sim);
    let result = route(&sim, &here, &request, (&format, &api_path), &mut entry).await;
    let status = result.as_ref().map_or_else(Fail::status, |_| 200);
    sim.log_request(entry, status);
    if status == 401 {
        sim.clock.sleep(Duration::from_secs(3)).await;
    }
    reply(&format, &result)
}

/// What pvestatd of each host tells is due by time, whoever asks for it and when.
fn tell(sim: &Sim) {
    let state = sim.lock();
    sim.stats().refresh(&state, sim.clock.now());
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
    let target =
        target(method, path).filter(|target| older::has(&sim.lock().version, target.endpoint));
    let who = identify(sim, request, target.as_ref())?;
    entry.caller = who.id();
    let given = parameters(request)?;
    entry.params = public(&given);
    let Some(Target {
        endpoint,
        route,
        template,
        in_path,
    }) = target
    else {
        return Err(Fail::not_implemented(method, &shown));
    };
    template.clone_into(&mut entry.template);
    let merged = merge(given, &in_path)?;
    let mut call = Call {
        sim: sim.clone(),
        who,
        here: here.to_owned(),
        params: texts(&merged),
    };
    permit::permitted(&sim.lock(), &call.who, endpoint, &shown, &call.params)?;
    hop::reach(&call, endpoint).await?;
    let fault = sim.take_fault(method, template);
    if let Some(fail) = fault.as_ref().and_then(RequestEffect::before) {
        return Err(fail);
    }
    call.params = verify::verify(endpoint, &merged)?;
    quorum::gate(sim, (method, template), &call).await?;
    let Some(route) = route else {
        return Err(Fail::not_implemented(method, &shown));
    };
    let result = run(route, endpoint, call, fault.clone()).await;
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

/// What a request asks for: PVE's endpoint, and the code for it if there is some here.
struct Target {
    endpoint: &'static Endpoint,
    route: Option<&'static Route>,
    template: &'static str,
    in_path: BTreeMap<String, String>,
}

fn target(method: &str, path: &[String]) -> Option<Target> {
    if let Some((route, in_path)) = find(method, path) {
        return Some(Target {
            endpoint: endpoints::find(route.method, route.template)?,
            route: Some(route),
            template: route.template,
            in_path,
        });
    }
    let (endpoint, in_path) = endpoints::by_path(method, path)?;
    Some(Target {
        endpoint,
        route: None,
        template: &endpoint.path,
        in_path,
    })
}

/// Where everybody may ask, credentials are not even looked at; but a token is seen.
fn identify(sim: &Sim, request: &Request, target: Option<&Target>) -> Result<Who, Fail> {
    let declared = target.and_then(|target| target.endpoint.perm.as_ref());
    if declared.is_some_and(|perm| perm.user.as_deref() == Some("world")) {
        return Ok(Who {
            user: String::new(),
            token: auth::token_given(request).then(String::new),
        });
    }
    auth::authenticate(sim, request)
}

/// Runs an endpoint's code, which goes on if the caller leaves or the proxy gives up.
async fn run(
    route: &Route,
    endpoint: &Endpoint,
    call: Call,
    fault: Option<RequestEffect>,
) -> ApiResult {
    let sim = call.sim.clone();
    let what = format!("{} {}", route.method, route.template);
    let daemon = hop::daemon_of(&call, endpoint);
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
        let place = match &daemon {
            Some(node) => {
                hop::daemon_goes_on(&inner, node).await;
                Some(inner.workers.enter(node).await)
            }
            None => None,
        };
        let result = work.await;
        drop(place);
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

fn texts(params: &RawParams) -> BTreeMap<String, String> {
    let text = |raw: &Raw| match raw {
        Raw::Text(text) => text.clone(),
        Raw::Bool(flag) => u8::from(*flag).to_string(),
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
