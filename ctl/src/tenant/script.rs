//! The same by hand: the commands for a PVE node, and the Secrets with a placeholder for what only PVE knows.

use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::plan::{PROGRAMS, Plan, word};
use super::secret;

/// The commands, one a line, for a shell of root on a PVE node of that version.
pub(crate) fn commands(plan: &Plan, major: u32) -> Vec<String> {
    let roles = plan.roles(major);
    let owner = plan.owner;
    let mut lines = vec![
        format!("# Nobody may have the owner's number: this prints \"{owner}\""),
        format!("pvesh get /cluster/nextid --vmid {owner}"),
        "# and these print no disk:".to_owned(),
    ];
    let disks = plan
        .storages
        .iter()
        .map(|storage| format!("pvesm list {storage} --vmid {owner}"));
    lines.extend(disks);
    lines.push("# A role that exists already is left out:".to_owned());
    lines.extend(roles.iter().map(|role| {
        let privileges: Vec<&str> = role.privileges.iter().map(String::as_str).collect();
        format!(
            "pveum role add {} --privs {}",
            role.name,
            privileges.join(",")
        )
    }));
    let comment = plan.tenant.comment();
    lines.push(format!(
        "pveum pool add {} --comment '{comment}'",
        plan.pool
    ));
    lines.push(format!(
        "pveum user add {} --comment '{comment}'",
        plan.user
    ));
    for program in PROGRAMS {
        let name = plan.token(program);
        lines.push(format!(
            "# Prints the secret of {}, this once:",
            plan.token_id(program)
        ));
        lines.push(format!(
            "pveum user token add {} {name} --privsep 1 --comment '{}'",
            plan.user,
            plan.mark(true)
        ));
    }
    for role in &roles {
        let propagate = if role.propagate { "" } else { " --propagate 0" };
        for path in &role.paths {
            let head = format!("pveum acl modify {path}{propagate}");
            lines.push(format!(
                "{head} --users {} --roles {}",
                plan.user, role.name
            ));
            let token = plan.token_id(role.program);
            lines.push(format!("{head} --tokens '{token}' --roles {}", role.name));
        }
    }
    lines
}

/// For people.
pub(crate) fn text(plan: &Plan, major: u32) -> String {
    let mut text = format!("# On a PVE node, as root; Proxmox VE {major}:\n");
    for line in commands(plan, major) {
        text.push_str(&line);
        text.push('\n');
    }
    text.push_str("\n# In the management cluster, with the tokens' secrets in their places:\n");
    for program in PROGRAMS {
        let placeholder = secret::placeholder(plan, program);
        let manifest = secret::manifest(plan, program, &placeholder);
        text.push_str("---\n");
        text.push_str(manifest.expose_secret());
    }
    text
}

/// For programs.
pub(crate) fn document(plan: &Plan, major: u32) -> Value {
    let secrets = PROGRAMS.map(|program| {
        let placeholder = secret::placeholder(plan, program);
        json!({
            "use": word(program),
            "name": secret::name(plan, program),
            "manifest": secret::manifest(plan, program, &placeholder).expose_secret(),
        })
    });
    let commands = commands(plan, major);
    let commands: Vec<&String> = commands
        .iter()
        .filter(|line| !line.starts_with('#'))
        .collect();
    json!({
        "owner": plan.owner.get(),
        "commands": commands,
        "secrets": secrets,
    })
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::*;

    /// `docs/reference/privileges.md` is written from the same endpoints.
    #[test]
    fn the_commands_make_the_roles_of_the_reference_and_no_line_breaks_out_of_its_quotes() {
        let reference = include_str!("../../../docs/reference/privileges.md");
        let mut plan = plan();
        plan.optional.ha = true;
        plan.optional.agent = true;
        let lines = commands(&plan, 9);
        let roles: Vec<&String> = lines
            .iter()
            .filter(|line| line.starts_with("pveum role add"))
            .collect();
        assert_eq!(roles.len(), 5);
        for role in roles {
            assert!(reference.contains(role.as_str()), "{role}");
        }
        for line in lines.iter().filter(|line| !line.starts_with('#')) {
            assert_eq!(line.matches('\'').count() % 2, 0, "{line}");
        }
        let on_root: Vec<&String> = lines
            .iter()
            .filter(|line| line.contains("modify / "))
            .collect();
        assert_eq!(on_root.len(), 2);
        assert!(
            on_root.iter().all(|line| line.contains("--propagate 0")),
            "{on_root:?}"
        );
    }
}
