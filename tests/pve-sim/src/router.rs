//! The table of endpoints: what each needs and which code answers it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use serde_json::Value;

use crate::acl::Who;
use crate::api;
use crate::fail::{Answer, ApiResult};
use crate::sim::Sim;
use crate::state::VmNumber;

pub(crate) type Work = Pin<Box<dyn Future<Output = ApiResult> + Send>>;
pub(crate) type Handler = Box<dyn Fn(Call) -> Work + Send + Sync>;

/// An endpoint's code; what it needs stands in the table of endpoints.
pub(crate) struct Route {
    pub(crate) method: &'static str,
    pub(crate) template: &'static str,
    pub(crate) handler: Handler,
}

/// A route whose code answers at once.
pub(crate) fn now(
    method: &'static str,
    template: &'static str,
    code: fn(&Call) -> ApiResult,
) -> Route {
    let handler: Handler = Box::new(move |call| Box::pin(async move { code(&call) }));
    Route {
        method,
        template,
        handler,
    }
}

/// A route whose code waits for locks, tasks or devices.
pub(crate) fn later<F, W>(method: &'static str, template: &'static str, code: F) -> Route
where
    F: Fn(Call) -> W + Send + Sync + 'static,
    W: Future<Output = ApiResult> + Send + 'static,
{
    let handler: Handler = Box::new(move |call| Box::pin(code(call)));
    Route {
        method,
        template,
        handler,
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

/// Finds the route and the parameters in its path.
pub(crate) fn find(
    method: &str,
    path: &[String],
) -> Option<(&'static Route, BTreeMap<String, String>)> {
    ROUTES
        .iter()
        .filter(|route| route.method == method)
        .find_map(|route| Some((route, bind(route.template, path)?)))
}

/// The parameters in a path that fits the template.
pub(crate) fn bind(template: &str, path: &[String]) -> Option<BTreeMap<String, String>> {
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

/// `null` as data.
pub(crate) fn null() -> Answer {
    Answer::from(Value::Null)
}
