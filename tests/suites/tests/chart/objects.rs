//! Parts of rendered objects.

use anyhow::{Context, Result};
use serde_json::Value;

/// Text at a JSON pointer; empty if there is none.
pub(crate) fn text<'a>(value: &'a Value, at: &str) -> &'a str {
    value
        .pointer(at)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// The array at a JSON pointer; empty if there is none.
pub(crate) fn list<'a>(value: &'a Value, at: &str) -> &'a [Value] {
    let list = value.pointer(at).and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

/// The strings of the array at a JSON pointer.
pub(crate) fn texts<'a>(value: &'a Value, at: &str) -> Vec<&'a str> {
    list(value, at).iter().filter_map(Value::as_str).collect()
}

/// `Kind/name`.
pub(crate) fn id(object: &Value) -> String {
    format!(
        "{}/{}",
        text(object, "/kind"),
        text(object, "/metadata/name")
    )
}

/// The objects of a kind.
pub(crate) fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let is = |object: &&Value| text(object, "/kind") == kind;
    objects.iter().filter(is).collect()
}

/// The object of this kind whose name ends so.
pub(crate) fn one<'a>(objects: &'a [Value], kind: &str, end: &str) -> Result<&'a Value> {
    let found = of_kind(objects, kind);
    let mut found = found.into_iter();
    found
        .find(|object| text(object, "/metadata/name").ends_with(end))
        .with_context(|| format!("no {kind} whose name ends with {end}"))
}

/// Each object that makes Pods, and the Pod's spec.
pub(crate) fn pods(objects: &[Value]) -> Vec<(String, &Value)> {
    let spec = |object: &'_ Value| object.pointer("/spec/template/spec").is_some();
    objects
        .iter()
        .filter(|object| spec(object))
        .map(|object| {
            let pod = object.pointer("/spec/template/spec").unwrap_or(object);
            (id(object), pod)
        })
        .collect()
}

/// All containers of a Pod, those that initialise it first.
pub(crate) fn containers(pod: &Value) -> Vec<&Value> {
    let init = list(pod, "/initContainers");
    init.iter().chain(list(pod, "/containers")).collect()
}

/// The container of this name, wherever it is.
pub(crate) fn container<'a>(objects: &'a [Value], name: &str) -> Result<&'a Value> {
    let all = pods(objects);
    let mut all = all.into_iter().flat_map(|(_, pod)| containers(pod));
    all.find(|container| text(container, "/name") == name)
        .with_context(|| format!("no container {name}"))
}

/// Visits every value with the path to it, the value itself first.
pub(crate) fn walk(value: &Value, path: &str, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, value);
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                walk(value, &format!("{path}/{key}"), visit);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                walk(value, &format!("{path}/{index}"), visit);
            }
        }
        _ => {}
    }
}
