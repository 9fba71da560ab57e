//! The table of PVE's API: for each method and path who may call it, whether pvedaemon answers it, and what its parameters must be
//! (`register_method` of the PVE 9.2 modules). Must not know what an endpoint does.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

/// What PVE declares about one endpoint.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Endpoint {
    #[serde(rename = "m")]
    pub(crate) method: String,
    #[serde(rename = "p")]
    pub(crate) path: String,
    /// Answered by a pvedaemon worker (`protected`), not by pveproxy.
    #[serde(default, deserialize_with = "flag")]
    pub(crate) worker: bool,
    /// Only for tickets (`allowtoken => 0`).
    #[serde(default, deserialize_with = "flag")]
    pub(crate) notoken: bool,
    /// `None`: only the ticket of root@pam.
    pub(crate) perm: Option<Permissions>,
    /// Takes every option of a VM's config, too.
    #[serde(default, deserialize_with = "flag")]
    pub(crate) vm: bool,
    pub(crate) args: BTreeMap<String, Arg>,
    /// Further parameters by the value of the parameter `type`.
    #[serde(default)]
    pub(crate) types: BTreeMap<String, BTreeMap<String, Arg>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Permissions {
    /// `world`: everybody; `all`: everybody who is authenticated.
    pub(crate) user: Option<String>,
    #[serde(default, deserialize_with = "check")]
    pub(crate) check: Option<Check>,
}

/// A permission check; paths hold `{parameters}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Check {
    And(Vec<Check>),
    Or(Vec<Check>),
    Perm {
        path: String,
        privileges: Vec<String>,
        any: bool,
        /// Without this parameter the check fails.
        needs: Option<String>,
    },
    /// A privilege on a group of the user that `userid` names.
    UserGroup {
        privileges: Vec<String>,
        groups: Groups,
    },
    /// The caller is the user that `userid` names.
    OneSelf,
    /// `Realm.AllocateUser` on the realm of `userid`.
    Realm,
    /// May hand out rights on the path.
    Modify {
        path: String,
    },
}

/// What the parameter `groups` has to do with a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Groups {
    Ignored,
    /// Those of a new user.
    Create,
    /// Those of an existing one.
    Update,
}

/// What a parameter must be.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Arg {
    #[serde(rename = "t")]
    pub(crate) kind: String,
    #[serde(rename = "o", deserialize_with = "flag")]
    pub(crate) optional: bool,
    #[serde(rename = "e")]
    pub(crate) values: Vec<String>,
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
    #[serde(rename = "lmin")]
    pub(crate) shortest: Option<usize>,
    #[serde(rename = "lmax")]
    pub(crate) longest: Option<usize>,
    #[serde(rename = "re")]
    pub(crate) pattern: Option<String>,
    /// Another parameter that must come with it.
    #[serde(rename = "req")]
    pub(crate) requires: Option<String>,
    #[serde(rename = "f")]
    pub(crate) format: Option<Format>,
    pub(crate) items: Option<Box<Arg>>,
    /// In a property string: its value may stand without a key.
    #[serde(deserialize_with = "flag")]
    pub(crate) key: bool,
    /// In a property string: the key that this is another name of.
    pub(crate) alias: Option<String>,
    /// In a property string: the key whose value this key itself is (`virtio=…` of a network card).
    pub(crate) names: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Format {
    Named(String),
    /// A property string (`key=value,…`).
    Nested(BTreeMap<String, Arg>),
}

fn flag<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(u8::deserialize(deserializer)? != 0)
}

fn check<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Check>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    parse(&value)
        .map(Some)
        .ok_or_else(|| serde::de::Error::custom(format!("no permission check: {value}")))
}

/// Reads PVE's form: `["perm", path, [privileges], option, value, …]` and so on.
fn parse(value: &Value) -> Option<Check> {
    let list = value.as_array()?;
    let text = |at: usize| list.get(at)?.as_str();
    let words = |at: usize| -> Option<Vec<String>> {
        let items = list.get(at)?.as_array()?.iter();
        items.map(|item| Some(item.as_str()?.to_owned())).collect()
    };
    let option = |name: &str| {
        let at = list.iter().skip(3).position(|item| item == name)? + 3;
        list.get(at + 1)
    };
    let below = || -> Option<Vec<Check>> { list.iter().skip(1).map(parse).collect() };
    Some(match text(0)? {
        "and" => Check::And(below()?),
        "or" => Check::Or(below()?),
        "perm" => Check::Perm {
            path: text(1)?.to_owned(),
            privileges: words(2)?,
            any: option("any").is_some(),
            needs: option("require_param").and_then(|name| Some(name.as_str()?.to_owned())),
        },
        "userid-group" => Check::UserGroup {
            privileges: words(1)?,
            groups: match list.get(3).and_then(Value::as_str) {
                Some("create") => Groups::Create,
                Some(_) => Groups::Update,
                None => Groups::Ignored,
            },
        },
        "userid-param" if text(1)? == "self" => Check::OneSelf,
        "userid-param" => Check::Realm,
        "perm-modify" => Check::Modify {
            path: text(1)?.to_owned(),
        },
        _ => return None,
    })
}

type Table = Result<Vec<Endpoint>, serde_json::Error>;

static TABLE: LazyLock<Table> =
    LazyLock::new(|| serde_json::from_str(include_str!("../data/endpoints.json")));
static VM_OPTIONS: LazyLock<BTreeMap<String, Arg>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../data/vm-options.json")).unwrap_or_default()
});

fn table() -> &'static [Endpoint] {
    TABLE.as_ref().map_or(&[], Vec::as_slice)
}

/// The entry of a route; a trailing `*` of a parameter (it takes the rest of the path) is the simulator's own sign.
pub(crate) fn find(method: &str, template: &str) -> Option<&'static Endpoint> {
    let plain = template.replace("*}", "}");
    table()
        .iter()
        .find(|entry| entry.method == method && entry.path == plain)
}

/// The entry for a path that has no code here, with the parameters in it.
pub(crate) fn by_path(
    method: &str,
    path: &[String],
) -> Option<(&'static Endpoint, BTreeMap<String, String>)> {
    table()
        .iter()
        .filter(|entry| entry.method == method)
        .find_map(|entry| Some((entry, crate::router::bind(&entry.path, path)?)))
}

/// What an option of a VM's config must be, by its name in the table (`net[n]` for all of those).
pub(crate) fn vm_option(name: &str) -> Option<&'static Arg> {
    VM_OPTIONS.get(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole_and_every_pattern_in_it_compiles() {
        let entries = TABLE.as_ref().unwrap();
        assert!(entries.len() > 200 && VM_OPTIONS.len() > 50);
        let args = entries.iter().flat_map(|entry| entry.args.values());
        let mut left: Vec<&Arg> = args.chain(VM_OPTIONS.values()).collect();
        while let Some(arg) = left.pop() {
            if let Some(Format::Nested(inner)) = &arg.format {
                left.extend(inner.values());
            }
            if let Some(pattern) = &arg.pattern {
                regex::Regex::new(pattern).unwrap();
            }
        }
    }

    #[test]
    fn every_route_of_the_simulator_is_an_endpoint_of_pve() {
        for route in crate::api::routes() {
            assert!(
                find(route.method, route.template).is_some(),
                "{} {}",
                route.method,
                route.template
            );
        }
    }

    #[test]
    fn checks_are_read_as_pve_writes_them() {
        let put = find("PUT", "/access/users/{userid}").unwrap();
        let wanted = Check::UserGroup {
            privileges: vec!["User.Modify".to_owned()],
            groups: Groups::Update,
        };
        assert_eq!(put.perm.as_ref().unwrap().check, Some(wanted));
        assert!(find("GET", "/cluster/nextid").is_some_and(|entry| !entry.worker));
        assert!(find("GET", "/cluster/status").is_some_and(|entry| entry.worker));
    }
}
