//! Makes what is missing, one thing after the other, and says of each whether it was there. All refusals come first; after
//! them a run that stops half-way is completed by the next one.

use pve_client::{AclEntry, Assignment, Client, Program};
use secrecy::{ExposeSecret, SecretString};

use super::check;
use super::out::Out;
use super::owner;
use super::plan::{Mark, PROGRAMS, Plan, Role, word};
use super::secret::{self, Known};
use super::seen::{Seen, list};
use crate::output::Failure;

/// How it is done.
#[derive(Debug)]
pub(crate) struct How {
    /// Where Secrets go.
    pub(crate) out: Out,
    /// Whether tokens that exist are made anew.
    pub(crate) rotate: bool,
    /// Whether Secrets that were written earlier and say something else are written anew.
    pub(crate) replace: bool,
    /// Whether another tenant may have rights on the same storages.
    pub(crate) share_storage: bool,
}

/// What was there and what was made.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// What it is, and whether it was changed.
    pub(crate) steps: Vec<(String, Done)>,
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    /// It was there already.
    Unchanged,
    /// It was made or changed.
    Changed,
    /// It is not as it should be.
    Open,
}

impl Report {
    fn add(&mut self, what: impl Into<String>, changed: bool) {
        let done = if changed {
            Done::Changed
        } else {
            Done::Unchanged
        };
        self.steps.push((what.into(), done));
    }

    fn open(&mut self, what: impl Into<String>) {
        self.steps.push((what.into(), Done::Open));
    }

    /// Whether all is as it should be.
    pub(crate) fn lacking(&self) -> Option<String> {
        let open = self.steps.iter().filter(|(_, done)| *done == Done::Open);
        let open: Vec<&str> = open.map(|(what, _)| what.as_str()).collect();
        (!open.is_empty()).then(|| format!("not all is as it should be: {}", open.join("; ")))
    }
}

/// A program's token before anything is done.
struct Planned {
    program: Program,
    /// The Secret that was written earlier.
    known: Option<Known>,
    /// What becomes of the token.
    fate: Fate,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Keep,
    Make,
    MakeAnew,
}

/// Does all of it.
pub(crate) async fn apply(
    plan: &Plan,
    admin: &Client,
    how: &How,
    report: &mut Report,
) -> Result<(), Failure> {
    how.out.prepare()?;
    let seen = Seen::read(admin, &plan.pool, &plan.storages).await?;
    let roles = plan.roles(seen.major);
    seen.serves(plan)?;
    owner::check(plan, admin, &seen).await?;
    let planned = refusals(plan, &seen, &roles, how)?;
    report.add(format!("owner {}", plan.owner), false);
    for role in &roles {
        let missing = !seen.roles.contains_key(&role.name);
        if missing {
            let privileges: Vec<&str> = role.privileges.iter().map(String::as_str).collect();
            admin.create_role(&role.name, &privileges.join(",")).await?;
        }
        report.add(format!("role {}", role.name), missing);
    }
    let missing = !seen.pools.contains_key(&plan.pool);
    if missing {
        admin
            .create_pool(&plan.pool, &plan.tenant.comment())
            .await?;
    }
    report.add(format!("pool {}", plan.pool), missing);
    let missing = seen.user(&plan.user).is_none();
    if missing {
        admin
            .create_user(&plan.user, &plan.tenant.comment())
            .await?;
    }
    report.add(format!("user {}", plan.user), missing);
    let mut tokens = Vec::new();
    for planned in planned {
        tokens.push(token(plan, admin, planned, report).await?);
    }
    // Controllers that get a Secret have to find their token able to work.
    grant(plan, admin, &roles, report).await?;
    let mut secrets = Vec::new();
    for token in tokens {
        secrets.push(hand_over(plan, admin, (how, token), report).await?);
    }
    for (program, secret) in PROGRAMS.into_iter().zip(&secrets) {
        let question = (program, secret.as_ref());
        let differences = check::differences(plan, question, (admin, seen.major)).await?;
        let id = plan.token_id(program);
        match differences.as_slice() {
            [] => report.add(
                format!("{id} may do what is documented, and nothing else"),
                false,
            ),
            some => report.open(format!("rights of {id}: {}", list(some))),
        }
    }
    Ok(())
}

/// Everything that stops it before anything is done.
fn refusals(plan: &Plan, seen: &Seen, roles: &[Role], how: &How) -> Result<Vec<Planned>, Failure> {
    for role in roles {
        seen.role_fits(role)?;
    }
    if !how.share_storage {
        seen.alone_on(&plan.storages, &plan.tenant)?;
    }
    if seen.user(&plan.user).is_some_and(|user| !user.enabled) {
        return Failure::refused(format!("the user {} may not log in", plan.user));
    }
    let mut planned = Vec::new();
    for program in PROGRAMS {
        let fate = fate(plan, seen, program, how.rotate)?;
        let known = how.out.known(plan, program)?;
        if let Some(known) = known.as_ref().filter(|known| !known.differences.is_empty())
            && !how.replace
        {
            return Failure::refused(format!(
                "the Secret {} was written earlier and differs: {}; say --replace to write it anew, without what was added to it by \
                 hand",
                secret::name(plan, program),
                list(&known.differences)
            ));
        }
        planned.push(Planned {
            program,
            known,
            fate,
        });
    }
    Ok(planned)
}

fn fate(plan: &Plan, seen: &Seen, program: Program, rotate: bool) -> Result<Fate, Failure> {
    let Some(token) = seen.token(&plan.user, plan.token(program)) else {
        return Ok(Fate::Make);
    };
    let id = plan.token_id(program);
    let tenant = plan.tenant.to_string();
    let Some(mark) = Mark::read(&token.comment).filter(|mark| mark.tenant == tenant) else {
        return Failure::refused(format!(
            "the token {id} exists and does not say that it is of {tenant}: name another user or token (--user, --{}-token)",
            word(program)
        ));
    };
    if !token.privsep {
        return Failure::refused(format!("the token {id} has no separated privileges"));
    }
    if rotate || !mark.handed_over {
        return Ok(Fate::MakeAnew);
    }
    if token.expire > 0 {
        return Failure::refused(format!(
            "the token {id} ends at a set time (expire {}): say --rotate to make it anew",
            token.expire
        ));
    }
    Ok(Fate::Keep)
}

/// A program's token as it is there now.
struct Token {
    program: Program,
    known: Option<Known>,
    /// Its secret, if it was made in this run.
    new: Option<SecretString>,
}

/// Makes a program's token if it is to be made.
async fn token(
    plan: &Plan,
    admin: &Client,
    planned: Planned,
    report: &mut Report,
) -> Result<Token, Failure> {
    let Planned {
        program,
        known,
        fate,
    } = planned;
    let (user, name, id) = (&plan.user, plan.token(program), plan.token_id(program));
    let new = if fate == Fate::Keep {
        None
    } else {
        if fate == Fate::MakeAnew {
            admin.delete_token(user, name).await?;
        }
        let comment = plan.mark(false).to_string();
        Some(admin.create_token(user, name, &comment).await?)
    };
    report.add(format!("token {id}"), new.is_some());
    Ok(Token {
        program,
        known,
        new,
    })
}

/// Writes a token's Secret, and then that it was written. The secret, if it is known.
async fn hand_over(
    plan: &Plan,
    admin: &Client,
    (how, token): (&How, Token),
    report: &mut Report,
) -> Result<Option<SecretString>, Failure> {
    let Token {
        program,
        known,
        new,
    } = token;
    let Some(secret) = new else {
        return keep(plan, (how, program), known, report);
    };
    let manifest = match &known {
        // What the operator added to it stays.
        Some(known) if known.differences.is_empty() => {
            let text = known.manifest.expose_secret();
            let old = known.secret.expose_secret();
            text.replace(old, secret.expose_secret()).into()
        }
        _ => secret::manifest(plan, program, secret.expose_secret()),
    };
    let at = how.out.hand_over(plan, program, &manifest)?;
    let comment = plan.mark(true).to_string();
    admin
        .describe_token(&plan.user, plan.token(program), &comment)
        .await?;
    report.add(
        format!("Secret {}: {at}", secret::name(plan, program)),
        true,
    );
    Ok(Some(secret))
}

/// A token that stays as it is.
fn keep(
    plan: &Plan,
    (how, program): (&How, Program),
    known: Option<Known>,
    report: &mut Report,
) -> Result<Option<SecretString>, Failure> {
    let written = format!("Secret {}", secret::name(plan, program));
    let Some(known) = known else {
        // PVE tells a secret once.
        report.add(format!("{written}: not written, its token's secret is where it was written first (--rotate makes a new one)"), false);
        return Ok(None);
    };
    if known.differences.is_empty() {
        report.add(written, false);
    } else {
        let manifest = secret::manifest(plan, program, known.secret.expose_secret());
        let at = how.out.hand_over(plan, program, &manifest)?;
        report.add(format!("{written}: {at}"), true);
    }
    Ok(Some(known.secret))
}

/// A token's rights are those that its user has, too: both get the same.
async fn grant(
    plan: &Plan,
    admin: &Client,
    roles: &[Role],
    report: &mut Report,
) -> Result<(), Failure> {
    // Tokens that were made anew have lost theirs.
    let acl = admin.acl().await?.entries;
    for role in roles {
        for path in &role.paths {
            for subject in [plan.user.clone(), plan.token_id(role.program)] {
                let line = AclEntry {
                    path: path.clone(),
                    subject,
                    role: role.name.clone(),
                    propagate: role.propagate,
                };
                let missing = !acl.contains(&line);
                if missing {
                    admin.grant(assignment(&line)).await?;
                }
                report.add(
                    format!("{} on {path} for {}", role.name, line.subject),
                    missing,
                );
            }
        }
    }
    Ok(())
}

/// As the client takes it.
pub(crate) fn assignment(line: &AclEntry) -> Assignment<'_> {
    Assignment {
        path: &line.path,
        role: &line.role,
        subject: &line.subject,
        propagate: line.propagate,
    }
}
