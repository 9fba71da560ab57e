//! The end of a tenant in a PVE cluster. It is refused while a volume exists, and while that can't be seen completely: the
//! owner's number is free for others afterwards.

use std::path::PathBuf;

use clap::Args;
use pve_client::{AclEntry, Client};
use pve_model::Region;
use pve_runtime::Config;
use pve_runtime::config::{RegionConfig, RegionPolicy};
use serde_json::json;

use super::apply::assignment;
use super::arguments::{NamesArguments, WhoseArguments};
use super::empty::{belongs, no_volume, storages};
use super::plan::{Optional, PROGRAMS, Plan, Tokens};
use super::seen::Seen;
use crate::admin::AdminArguments;
use crate::output::{Failure, Format, Outcome};
use crate::text::table;

/// Take away what `pvectl tenant` set up: rights, tokens, the user and roles that no one else uses, and the pool if it is
/// empty. The controllers have to be gone first. Refused while a disk of the tenant's owners, or an adopted one, exists on a
/// storage of the tenant, and while a storage or host can't be read.
#[derive(Debug, Args)]
pub(crate) struct RemoveArguments {
    #[command(flatten)]
    whose: WhoseArguments,
    /// The CSI controller's config, with policy.yaml beside it: it says what the tenant has, adopted volumes included.
    #[arg(long, value_name = "FILE")]
    cloud_config: PathBuf,
    /// The policy file, if it does not lie beside the config.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The region as the config names it. Not needed if it has one only.
    #[arg(long)]
    region: Option<Region>,
    #[command(flatten)]
    names: NamesArguments,
    #[command(flatten)]
    admin: AdminArguments,
    /// Do it. Without it, what would be taken away is printed.
    #[arg(long)]
    apply: bool,
    /// How the answer looks.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// One thing that is taken away.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Line(AclEntry),
    Token(String),
    User,
    Role(String),
    Pool,
}

/// Runs the verb.
pub(super) async fn run(arguments: &RemoveArguments) -> Result<Outcome, Failure> {
    let config = Config::load(&arguments.cloud_config, arguments.policy.as_deref())?;
    let (region, settings) = the_region(&config, arguments.region.as_ref())?;
    let plan = arguments.plan(&config, region, settings)?;
    let admin = arguments.admin.connect(&settings.endpoints).await?;
    let seen = Seen::read(&admin, &plan.pool, &plan.storages).await?;
    belongs(&plan, &seen, &settings.policy)?;
    let mut done = Vec::new();
    let how = (&settings.policy, arguments.apply);
    let ended = take_all(&plan, (&admin, seen), how, &mut done).await;
    let text = told(&done, &plan, arguments);
    match ended {
        Ok(kept) => Ok(Outcome {
            text: match (arguments.output, kept.is_empty()) {
                (Format::Table, false) => format!("{text}{kept}\n"),
                (Format::Json, _) | (Format::Table, true) => text,
            },
            lacking: None,
        }),
        Err(error) => {
            eprint!("{text}");
            Err(error)
        }
    }
}

fn the_region<'a>(
    config: &'a Config,
    named: Option<&Region>,
) -> Result<(&'a Region, &'a RegionConfig), Failure> {
    let mut regions = config.regions.iter();
    let found = match named {
        Some(named) => regions.find(|(region, _)| *region == named),
        None if config.regions.len() == 1 => regions.next(),
        None => return Failure::refused("the config has several regions: --region is needed"),
    };
    found.ok_or_else(|| Failure::Refused("the config has no such region".to_owned()))
}

impl RemoveArguments {
    /// What the tenant has, as its config says.
    fn plan(
        &self,
        config: &Config,
        region: &Region,
        settings: &RegionConfig,
    ) -> Result<Plan, Failure> {
        let tenant = self.whose.tenant();
        let id = settings
            .token
            .read()
            .map_err(|error| Failure::Refused(error.to_string()))?
            .id;
        let Some((user, csi)) = id.split_once('!') else {
            return Failure::refused("the config's token has no user");
        };
        if self
            .names
            .user
            .as_deref()
            .is_some_and(|named| named != user)
        {
            return Failure::refused(format!("the config's token is of another user: {user}"));
        }
        let policy = &settings.policy;
        let owner = policy
            .owners
            .default
            .or(policy.owners.per_node.values().next().copied());
        let Some(owner) = owner else {
            return Failure::refused("the config names no owner");
        };
        Ok(Plan {
            region: region.clone(),
            endpoints: settings.endpoints.clone(),
            pool: policy.pool.clone(),
            storages: policy.storages.keys().cloned().collect(),
            pve_nodes: policy.pve_nodes.clone(),
            owner,
            provider: config.provider,
            user: user.to_owned(),
            tokens: Tokens {
                csi: csi.to_owned(),
                ccm: self.names.ccm_token.clone(),
            },
            role_prefix: self.names.role_prefix.clone(),
            // All that may have been granted.
            optional: Optional {
                ha: true,
                agent: true,
            },
            tenant,
        })
    }
}

/// Takes away what there is, or only says what. What stays and why.
async fn take_all(
    plan: &Plan,
    (admin, mut seen): (&Client, Seen),
    (policy, apply): (&RegionPolicy, bool),
    done: &mut Vec<Part>,
) -> Result<String, Failure> {
    let storages = storages(plan, &seen)?;
    no_volume(&storages, (admin, &seen), policy).await?;
    let (user, user_stays) = user_fate(plan, &seen);
    take_rights(
        plan,
        (admin, &mut seen),
        (user_stays.is_some(), apply),
        done,
    )
    .await?;
    if apply && !done.is_empty() {
        // A controller that still ran could make one until now.
        let again = no_volume(&storages, (admin, &seen), policy).await;
        again.or_else(|why| {
            Failure::failed(format!(
                "looked again without the tokens, which are taken away now: {why}; pvectl tenant makes them anew"
            ))
        })?;
    }
    if user {
        if apply {
            admin.delete_user(&plan.user).await?;
        }
        done.push(Part::User);
    }
    let roles = roles(plan, (admin, &mut seen), apply, done).await?;
    let kept: Vec<String> = user_stays
        .into_iter()
        .chain(roles)
        .chain(pool(plan, (admin, &seen), apply, done).await?)
        .collect();
    Ok(kept.join("\n"))
}

/// Takes away rights and tokens.
async fn take_rights(
    plan: &Plan,
    (admin, seen): (&Client, &mut Seen),
    (shared, apply): (bool, bool),
    done: &mut Vec<Part>,
) -> Result<(), Failure> {
    let tokens = PROGRAMS.map(|program| plan.token_id(program));
    let lines = seen.acl.iter().filter(|line| {
        tokens.contains(&line.subject)
            || (line.subject == plan.user && own_line(plan, seen, line, shared))
    });
    let lines: Vec<AclEntry> = lines.cloned().collect();
    for line in lines {
        if apply {
            admin.take_away(assignment(&line)).await?;
        }
        seen.acl.retain(|other| *other != line);
        done.push(Part::Line(line));
    }
    for program in PROGRAMS {
        let name = plan.token(program);
        if seen.token(&plan.user, name).is_some() {
            if apply {
                admin.delete_token(&plan.user, name).await?;
            }
            done.push(Part::Token(plan.token_id(program)));
        }
    }
    Ok(())
}

/// Whether the user is taken away; why not, if it is there and stays.
fn user_fate(plan: &Plan, seen: &Seen) -> (bool, Option<String>) {
    let Some(user) = seen.user(&plan.user) else {
        return (false, None);
    };
    let foreign = user.tokens.iter().find(|token| {
        let ours = PROGRAMS
            .iter()
            .any(|program| plan.token(*program) == token.name);
        !ours
    });
    let why = if user.comment != plan.tenant.comment() {
        "it was not made by pvectl for this tenant".to_owned()
    } else if let Some(token) = foreign {
        format!("it has the token {}", token.name)
    } else if !user.groups.is_empty() {
        format!("it is in the group {}", user.groups.join(", "))
    } else {
        return (true, None);
    };
    (false, Some(format!("The user {} stays: {why}.", plan.user)))
}

/// Whether a line of the user's is of what was set up. Of a user that stays only where none of its other tokens, whose rights
/// it bounds, has any.
fn own_line(plan: &Plan, seen: &Seen, line: &AclEntry, shared: bool) -> bool {
    if !shared {
        return true;
    }
    let others = format!("{}!", plan.user);
    let tokens = PROGRAMS.map(|program| plan.token_id(program));
    let used = seen.acl.iter().any(|other| {
        other.path == line.path
            && other.subject.starts_with(&others)
            && !tokens.contains(&other.subject)
    });
    let set_up = [8, 9].into_iter().flat_map(|major| plan.roles(major));
    let mut set_up = set_up.filter(|role| role.name == line.role);
    !used && set_up.any(|role| role.paths.contains(&line.path))
}

/// The roles that nobody holds any more.
async fn roles(
    plan: &Plan,
    (admin, seen): (&Client, &mut Seen),
    apply: bool,
    done: &mut Vec<Part>,
) -> Result<Vec<String>, Failure> {
    let mut kept = Vec::new();
    if apply {
        seen.acl = admin.acl().await?.entries;
    }
    for role in plan.roles(seen.major) {
        match seen.roles.get(&role.name) {
            None => continue,
            Some(held) if *held != role.privileges => {
                kept.push(format!(
                    "The role {} stays: it holds something else.",
                    role.name
                ));
                continue;
            }
            Some(_) => {}
        }
        if let Some(line) = seen.acl.iter().find(|line| line.role == role.name) {
            kept.push(format!(
                "The role {} stays: {} holds it on {}.",
                role.name, line.subject, line.path
            ));
            continue;
        }
        if apply {
            admin.delete_role(&role.name).await?;
        }
        done.push(Part::Role(role.name));
    }
    Ok(kept)
}

/// The pool, if it is empty and was made for the tenant.
async fn pool(
    plan: &Plan,
    (admin, seen): (&Client, &Seen),
    apply: bool,
    done: &mut Vec<Part>,
) -> Result<Option<String>, Failure> {
    let Some(comment) = seen.pools.get(&plan.pool) else {
        return Ok(None);
    };
    let path = format!("/pool/{}", plan.pool);
    let member = seen
        .guests
        .iter()
        .find(|guest| guest.pool.as_ref() == Some(&plan.pool));
    let holder = seen.acl.iter().find(|line| line.path == path);
    let why = if *comment != plan.tenant.comment() {
        "it was not made by pvectl for this tenant".to_owned()
    } else if let Some(guest) = member {
        format!("guest {} is in it", guest.vmid)
    } else if let Some(line) = holder {
        format!("{} has rights on it", line.subject)
    } else {
        if apply {
            // PVE refuses one that has members.
            admin.delete_pool(&plan.pool).await?;
        }
        done.push(Part::Pool);
        return Ok(None);
    };
    Ok(Some(format!("The pool {} stays: {why}.", plan.pool)))
}

fn told(done: &[Part], plan: &Plan, arguments: &RemoveArguments) -> String {
    let row = |part: &Part| match part {
        Part::Line(line) => [
            "rights".to_owned(),
            format!("{} on {} of {}", line.role, line.path, line.subject),
        ],
        Part::Token(id) => ["token".to_owned(), id.clone()],
        Part::User => ["user".to_owned(), plan.user.clone()],
        Part::Role(name) => ["role".to_owned(), name.clone()],
        Part::Pool => ["pool".to_owned(), plan.pool.to_string()],
    };
    let rows: Vec<[String; 2]> = done.iter().map(row).collect();
    if arguments.output == Format::Json {
        return format!(
            "{:#}\n",
            json!({ "removed": rows, "applied": arguments.apply })
        );
    }
    match (rows.is_empty(), arguments.apply) {
        (true, _) => "Nothing of it is there.\n".to_owned(),
        (false, true) => format!("Taken away:\n{}", table(["kind", "what"], &rows)),
        (false, false) => format!(
            "--apply would take away:\n{}",
            table(["kind", "what"], &rows)
        ),
    }
}
