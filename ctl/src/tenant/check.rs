//! Whether a token may do what is documented, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use pve_client::{Client, PermissionsByPath, Program, Timeouts, Token};
use pve_region::connect::endpoints;
use secrecy::SecretString;

use super::plan::Plan;
use super::seen::list;
use crate::admin;
use crate::output::Failure;

/// What is not as documented of a program's token: asked with the token itself if its secret is known, else with the
/// rights of the operator.
pub(crate) async fn differences(
    plan: &Plan,
    (program, secret): (Program, Option<&SecretString>),
    (operator, major): (&Client, u32),
) -> Result<Vec<String>, Failure> {
    let id = plan.token_id(program);
    let seen = match secret {
        Some(secret) => {
            let token = Token {
                id: id.clone(),
                secret: secret.clone(),
                csrf: None,
            };
            let client = admin::client(endpoints(&plan.endpoints), token, Timeouts::default())?;
            client.all_permissions(None).await
        }
        None => operator.all_permissions(Some(&id)).await,
    };
    let seen = seen.map_err(|error| Failure::Failed(format!("the rights of {id}: {error}")))?;
    Ok(compare(&documented(plan, program, major), &seen, plan))
}

/// What a program's token holds, by path.
fn documented(plan: &Plan, program: Program, major: u32) -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let roles = plan.roles(major).into_iter();
    for role in roles.filter(|role| role.program == program) {
        for path in &role.paths {
            let held = all.entry(path.clone()).or_default();
            held.extend(role.privileges.iter().cloned());
        }
    }
    all
}

/// PVE tells what is held on a pool for its members and the pools below it, too.
fn compare(
    documented: &BTreeMap<String, BTreeSet<String>>,
    seen: &PermissionsByPath,
    plan: &Plan,
) -> Vec<String> {
    let none = BTreeSet::new();
    let pool = format!("/pool/{}", plan.pool);
    let on_pool = documented.get(&pool).unwrap_or(&none);
    let mut differences = Vec::new();
    for (path, wanted) in documented {
        let held = seen.get(path).unwrap_or(&none);
        let lacking: Vec<&String> = wanted.difference(held).collect();
        if !lacking.is_empty() {
            differences.push(format!("{} on {path} is missing", list(lacking)));
        }
    }
    for (path, held) in seen {
        let mut allowed = documented.get(path).unwrap_or(&none).clone();
        let member = ["/vms/", "/storage/"]
            .iter()
            .any(|head| path.starts_with(head));
        if member || path.starts_with(&format!("{pool}/")) {
            allowed.extend(on_pool.iter().cloned());
        }
        let more: Vec<&String> = held.difference(&allowed).collect();
        if !more.is_empty() {
            differences.push(format!(
                "{} on {path} is more than is documented",
                list(more)
            ));
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::*;

    fn held(rows: &[(&str, &[&str])]) -> PermissionsByPath {
        let row = |(path, held): &(&str, &[&str])| {
            let held = held.iter().map(|privilege| (*privilege).to_owned());
            ((*path).to_owned(), held.collect())
        };
        rows.iter().map(row).collect()
    }

    const POOL: &[&str] = &["Pool.Audit", "VM.Audit", "VM.Config.Disk"];
    const STORAGE: &[&str] = &[
        "Datastore.Allocate",
        "Datastore.AllocateSpace",
        "Datastore.Audit",
    ];

    fn csi(more: &[(&str, &[&str])]) -> Vec<String> {
        let plan = plan();
        let least = [
            ("/pool/blue", POOL),
            ("/storage/big", STORAGE),
            ("/storage/fast", STORAGE),
        ];
        let mut seen = held(&least);
        seen.extend(held(more));
        compare(&documented(&plan, Program::Csi, 9), &seen, &plan)
    }

    #[test]
    fn what_is_documented_and_what_follows_from_the_pool_is_no_difference() {
        assert_eq!(csi(&[]), [""; 0]);
        assert_eq!(
            csi(&[("/vms/101", POOL), ("/pool/blue/below", POOL)]),
            [""; 0]
        );
    }

    #[test]
    fn a_privilege_that_is_missing_or_too_many_is_told_with_its_path() {
        assert_eq!(
            csi(&[("/storage/fast", &STORAGE[..2])]),
            ["Datastore.Audit on /storage/fast is missing"]
        );
        assert_eq!(
            csi(&[("/", &["Sys.Audit"])]),
            ["Sys.Audit on / is more than is documented"]
        );
        assert_eq!(
            csi(&[("/vms/101", &["VM.PowerMgmt"])]),
            ["VM.PowerMgmt on /vms/101 is more than is documented"]
        );
        assert_eq!(csi(&[("/storage/other", STORAGE)]).len(), 1);
        assert_eq!(csi(&[("/pool/red", POOL)]).len(), 1);
    }
}
