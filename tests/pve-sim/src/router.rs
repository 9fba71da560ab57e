//! The table of endpoints and the way a request takes through it, in PVE's order of checks (api.md 1.2).

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::{Value, json};

use crate::acl::{self, Who};
use crate::api;
use crate::auth;
use crate::fail::{Answer, ApiResult, Fail};
use crate::http::{Reply, Request, form};
use crate::log::Entry;
use crate::schema::{self, Extra, Param, Raw, RawParams};
use crate::sim::Sim;
use crate::state::{Health, VmNumber};

pub(crate) type Work = Pin<Box<dyn Future<Output = ApiResult> + Send>>;
pub(crate) type Handler = Box<dyn Fn(Call) -> Work + Send + Sync>;

/// The declared `permissions` of an endpoint; paths may hold `{parameters}`.
pub(crate) enum Perm {
    /// Any authenticated caller; the code filters or checks by itself.
    User,
    All(&'static str, &'static [&'static str]),
    Any(&'static str, &'static [&'static str]),
    /// No `permissions` entry: only a ticket of root@pam.
    Root,
    Custom(fn(&Call) -> Result<(), Fail>),
}

pub(crate) struct Route {
    pub(crate) method: &'static str,
    pub(crate) template: &'static str,
    pub(crate) perm: Perm,
    pub(crate) params: Vec<Param>,
    pub(crate) extra: Extra,
    pub(crate) handler: Handler,
}

/// A route whose code answers at once.
pub(crate) fn now(
    method: &'static str,
    template: &'static str,
    perm: Perm,
    params: &[Param],
    code: fn(&Call) -> ApiResult,
) -> Route {
    let handler: Handler = Box::new(move |call| Box::pin(std::future::ready(code(&call))));
    Route {
        method,
        template,
        perm,
        params: params.to_vec(),
        extra: Extra::Nothing,
        handler,
    }
}

/// A route whose code waits for locks, tasks or devices.
pub(crate) fn later<F, W>(
    method: &'static str,
    template: &'static str,
    perm: Perm,
    params: &[Param],
    code: F,
) -> Route
where
    F: Fn(Call) -> W + Send + Sync + 'static,
    W: Future<Output = ApiResult> + Send + 'static,
{
    let handler: Handler = Box::new(move |call| Box::pin(code(call)));
    Route {
        method,
        template,
        perm,
        params: params.to_vec(),
        extra: Extra::Nothing,
        handler,
    }
}

impl Route {
    pub(crate) fn with(mut self, extra: Extra) -> Self {
        self.extra = extra;
        self
    }
}

/// A request on its way into an endpoint's code.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) sim: Arc<Sim>,
    pub(crate) who: Who,
    /// The PVE node that answers.
    pub(crate) here: String,
    pub(crate) params: BTreeMap<String, String>,
}

impl Call {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.params.get(name).map(String::as_str)
    }

    /// A parameter that the schema guarantees.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.get(name) == Some("1")
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }

    pub(crate) fn vmid(&self) -> VmNumber {
        self.text("vmid").parse().unwrap_or_default()
    }

    /// The PVE node of the path; `localhost` is the one that answers.
    pub(crate) fn node(&self) -> String {
        match self.text("node") {
            "localhost" => self.here.clone(),
            name => name.to_owned(),
        }
    }
}

static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(api::routes);

/// Text of a refused proxy hop that took too long (`AnyEvent.pm:835`).
const PROXY_TIMEOUT: Duration = Duration::from_secs(30);

/// Finds the route and the parameters in its path.
fn find(method: &str, path: &[String]) -> Option<(&'static Route, BTreeMap<String, String>)> {
    ROUTES
        .iter()
        .filter(|route| route.method == method)
        .find_map(|route| Some((route, bind(route.template, path)?)))
}

fn bind(template: &str, path: &[String]) -> Option<BTreeMap<String, String>> {
    let mut values = BTreeMap::new();
    let mut rest = path.iter();
    for part in template.split('/').filter(|part| !part.is_empty()) {
        let name = part.strip_prefix('{').and_then(|p| p.strip_suffix('}'));
        match name.map(|name| name.strip_suffix('*').ok_or(name)) {
            Some(Ok(swallow)) => {
                let all: Vec<&str> = rest.by_ref().map(String::as_str).collect();
                if all.is_empty() {
                    return None;
                }
                values.insert(swallow.to_owned(), all.join("/"));
            }
            Some(Err(name)) => {
                values.insert(name.to_owned(), rest.next()?.clone());
            }
            None if rest.next()? != part => return None,
            None => {}
        }
    }
    rest.next().is_none().then_some(values)
}

/// Answers a request to the API of the PVE node `here`.
pub(crate) async fn answer(sim: Arc<Sim>, here: String, request: Request) -> Option<Reply> {
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
    if !["GET", "POST", "PUT", "DELETE"].contains(&method) {
        return Err(Fail::Text {
            status: 501,
            message: format!("method '{method}' not available"),
        });
    }
    if request.chunked {
        return Err(Fail::Text {
            status: 501,
            message: "chunked transfer encoding not supported".to_owned(),
        });
    }
    if !["json", "extjs"].contains(&format) {
        return Err(Fail::Text {
            status: 501,
            message: format!("no formatter for uri {shown}, {format}"),
        });
    }
    let found = find(method, path);
    let world = found
        .as_ref()
        .is_some_and(|(route, _)| api::is_world(route.method, route.template));
    let who = {
        let authorization = request.authorization.as_deref();
        match auth::authenticate(
            &sim.lock(),
            sim.clock.epoch(),
            authorization,
            request.cookie.as_deref(),
        ) {
            Err(_) if world => Who {
                user: String::new(),
                token: None,
            },
            other => other?,
        }
    };
    entry.caller = who.id();
    let given = parameters(request)?;
    entry.params = public(&given);
    let Some((route, in_path)) = found else {
        return Err(Fail::not_implemented(method, &shown));
    };
    entry.template = route.template.to_owned();
    let merged = merge(given, &in_path)?;
    let mut call = Call {
        sim: sim.clone(),
        who,
        here: here.to_owned(),
        params: texts(&merged),
    };
    permitted(route, &call)?;
    reach(&call).await?;
    let fault = sim.take_fault(method, route.template);
    if let Some(fail) = fault.as_ref().and_then(|fault| fault.before()) {
        return Err(fail);
    }
    call.params = schema::verify(&all_params(route), route.extra, &merged)?;
    let work = (route.handler)(call);
    let slow = fault.as_ref().and_then(|fault| fault.delay());
    let clock = sim.clone();
    let work = sim.tracker.spawn(async move {
        if let Some(time) = slow {
            clock.clock.sleep(time).await;
        }
        work.await
    });
    let result = tokio::select! {
        result = work => result.unwrap_or_else(|error| Err(Fail::die(format!("internal error of the simulator: {error}")))),
        () = sim.clock.sleep(PROXY_TIMEOUT) => Err(Fail::Empty { status: 596, reason: "Connection timed out".to_owned() }),
    };
    match fault.as_ref().and_then(|fault| fault.after()) {
        Some(fail) => Err(fail),
        None => result,
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
            "application/json" => form::decode_json(&request.body).ok_or_else(|| Fail::Text {
                status: 500,
                message:
                    "malformed JSON string, neither tag, array, object, number, string or atom\n"
                        .to_owned(),
            })?,
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
    match &route.perm {
        Perm::User => Ok(()),
        Perm::All(path, wanted) => acl::need_all(&state, &call.who, &fill(path), wanted),
        Perm::Any(path, wanted) => acl::need_any(&state, &call.who, &fill(path), wanted),
        Perm::Root => Err(Fail::denied("user != root@pam")),
        Perm::Custom(check) => {
            drop(state);
            check(call)
        }
    }
}

/// The hop to the PVE node in the path.
async fn reach(call: &Call) -> Result<(), Fail> {
    let Some(name) = call.get("node") else {
        return Ok(());
    };
    let node = call.node();
    let health = call.sim.lock().nodes.get(&node).map(|node| node.health);
    match health {
        None => Err(Fail::die(format!(
            "hostname lookup '{name}' failed - failed to get address info for: {name}: Name or service not known"
        ))),
        Some(Health::Online) => Ok(()),
        Some(Health::Offline) => {
            call.sim.clock.sleep(Duration::from_secs(3)).await;
            Err(Fail::Empty {
                status: 595,
                reason: "No route to host".to_owned(),
            })
        }
        Some(Health::Hung) => {
            call.sim.clock.sleep(PROXY_TIMEOUT).await;
            Err(Fail::Empty {
                status: 596,
                reason: "Connection timed out".to_owned(),
            })
        }
    }
}

/// `null` as data.
pub(crate) fn null() -> ApiResult {
    Ok(Answer::from(Value::Null))
}
