//! The arguments of `pvectl tenant`, and the plan that they make.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use pve_model::{PoolId, PveNode, Region, StorageId, VmId};
use pve_runtime::Config;
use pve_runtime::config::{EndpointConfig, Provider};
use serde_json::json;

use super::plan::{self, Optional, Plan, Tenant, Tokens};
use super::remove::RemoveArguments;
use super::secret;
use crate::admin::AdminArguments;
use crate::output::{Failure, Format};

/// Longest name of a Kubernetes namespace, and of a Helm release.
const NAMESPACE_MAX: usize = 63;
const RELEASE_MAX: usize = 53;
/// Longest CA bundle.
const CA_MAX: u64 = 1 << 20;

/// `pvectl tenant …` and `pvectl tenant remove …`.
#[derive(Debug)]
pub(crate) enum TenantArguments {
    /// Without a word behind it.
    Make(Box<MakeArguments>),
    /// `remove`.
    Remove(Box<RemoveArguments>),
}

const REMOVE: &str = "remove";

impl FromArgMatches for TenantArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        match matches.subcommand() {
            Some((_, matches)) => RemoveArguments::from_arg_matches(matches)
                .map(|found| Self::Remove(Box::new(found))),
            None => {
                MakeArguments::from_arg_matches(matches).map(|found| Self::Make(Box::new(found)))
            }
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// What is required of one is not of the other, which derived code can't say of arguments in groups.
impl Args for TenantArguments {
    fn augment_args(command: Command) -> Command {
        let remove = RemoveArguments::augment_args(Command::new(REMOVE));
        MakeArguments::augment_args(command)
            .subcommand(remove)
            .subcommand_negates_reqs(true)
            .args_conflicts_with_subcommands(true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Set up what a tenant needs in a PVE cluster: its pool, the number of its disks' owner, a user with two tokens of the least
/// rights, and the Secrets that the controllers' chart takes.
///
/// Without --apply nothing is asked and nothing is done: the commands and the Secrets are printed, with placeholders for what
/// only Proxmox VE knows. With --apply, and rights to do it, it is done: what exists already stays as it is, and a run that
/// stopped half-way is completed by the next. PVE tells a token's secret once; it goes into the Secret and nowhere else.
#[derive(Debug, Args)]
pub(crate) struct MakeArguments {
    #[command(flatten)]
    whose: WhoseArguments,
    /// What the PVE cluster is called in the Nodes' label topology.kubernetes.io/region.
    #[arg(long)]
    region: Region,
    #[command(flatten)]
    reached: ReachedArguments,
    /// The pool of the tenant's VMs.
    #[arg(long)]
    pool: PoolId,
    /// A storage of the tenant's own. May be given several times.
    #[arg(long, required = true)]
    storage: Vec<StorageId>,
    /// A host whose VMs and storages may be used. May be given several times.
    #[arg(long, value_name = "PVE_NODE", required = true)]
    node: Vec<PveNode>,
    #[command(flatten)]
    names: NamesArguments,
    /// The VMID that disks are named after, which no guest has. Default: derived from namespace and release.
    #[arg(long, value_name = "VMID")]
    owner: Option<VmId>,
    /// What the owner is.
    #[arg(long, value_enum, default_value_t)]
    mode: ModeArgument,
    /// How the tenant's Nodes are made.
    #[arg(long, value_enum, default_value_t)]
    provider: ProviderArgument,
    /// Also give the CCM's token what it needs to label Nodes by HA rules: Sys.Audit on /.
    #[arg(long)]
    ha: bool,
    /// Also give the CCM's token what it needs to ask guest agents for addresses.
    #[arg(long)]
    guest_agent: bool,
    #[command(flatten)]
    pub(super) doing: DoingArguments,
}

/// Whose it is.
#[derive(Debug, Args)]
pub(super) struct WhoseArguments {
    /// The namespace of the tenant's controllers in the management cluster.
    #[arg(long, value_parser = namespace)]
    namespace: String,
    /// The release of the tenant's controllers.
    #[arg(long, value_parser = release)]
    release: String,
}

#[derive(Debug, Args)]
pub(super) struct ReachedArguments {
    /// The URL of a member of the PVE cluster, as `https://pve1:8006`. May be given several times.
    #[arg(long, value_name = "URL", required = true)]
    endpoint: Vec<String>,
    /// The file with the authority that signed the members' certificates. Default: the system's authorities.
    #[arg(long, value_name = "FILE", conflicts_with = "fingerprint")]
    ca_file: Option<PathBuf>,
    /// The SHA-256 of an endpoint's certificate; one for each, in their order.
    #[arg(long, value_name = "SHA256")]
    fingerprint: Vec<String>,
}

/// What things are called.
#[derive(Debug, Args)]
pub(super) struct NamesArguments {
    /// The user that the tokens belong to. Default: one of the tenant's own.
    #[arg(long, value_name = "USER@REALM", value_parser = user)]
    pub(super) user: Option<String>,
    /// The name of the token of pve-csi-controller.
    #[arg(long, value_name = "NAME", default_value = "csi", value_parser = token_name)]
    pub(super) csi_token: String,
    /// The name of the token of pve-ccm.
    #[arg(long, value_name = "NAME", default_value = "ccm", value_parser = token_name)]
    pub(super) ccm_token: String,
    /// What the names of the roles begin with.
    #[arg(long, value_name = "WORD", default_value = "", value_parser = role_prefix)]
    pub(super) role_prefix: String,
}

#[derive(Debug, Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(super) struct DoingArguments {
    /// Do it.
    #[arg(long)]
    pub(super) apply: bool,
    #[command(flatten)]
    pub(super) admin: AdminArguments,
    /// The folder for the Secrets. Default: standard output, and the report on standard error.
    #[arg(long, value_name = "DIR", requires = "apply")]
    pub(super) out: Option<PathBuf>,
    /// Make tokens anew that exist, with new secrets. The controllers that have the old ones need the new Secrets.
    #[arg(long, requires = "apply")]
    pub(super) rotate: bool,
    /// Write Secrets anew that were written earlier and say something else.
    #[arg(long, requires = "out")]
    pub(super) replace: bool,
    /// Set it up although another tenant has rights on one of the storages. Each can take the other's disks then.
    #[arg(long)]
    pub(super) share_storage: bool,
    /// The version of Proxmox VE that commands are printed for. With --apply it is asked.
    #[arg(long, value_name = "8|9", default_value_t = 9, value_parser = clap::value_parser!(u32).range(8..=9))]
    pub(super) pve_version: u32,
    /// How the answer looks.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: Format,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(super) enum ProviderArgument {
    /// By anyone.
    #[default]
    Default,
    /// By Cluster API.
    Capmox,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum ModeArgument {
    /// A VMID that no guest has.
    #[default]
    Reserved,
    /// A stopped VM. Not offered yet.
    #[value(name = "ownerVM")]
    OwnerVm,
}

impl WhoseArguments {
    pub(super) fn tenant(&self) -> Tenant {
        Tenant {
            namespace: self.namespace.clone(),
            release: self.release.clone(),
        }
    }
}

impl MakeArguments {
    pub(super) fn plan(&self) -> Result<Plan, Failure> {
        if self.mode == ModeArgument::OwnerVm {
            return Failure::refused(
                "the controller does not serve ownerVM yet: use reserved, with storages that no one else uses",
            );
        }
        let tenant = self.whose.tenant();
        let owner = match self.owner {
            Some(owner) => owner,
            None => tenant.derived_owner().map_err(Failure::Failed)?,
        };
        let plan = Plan {
            region: self.region.clone(),
            endpoints: self.reached.endpoints()?,
            pool: self.pool.clone(),
            storages: self.storage.iter().cloned().collect(),
            pve_nodes: self.node.iter().cloned().collect(),
            owner,
            provider: match self.provider {
                ProviderArgument::Default => Provider::Default,
                ProviderArgument::Capmox => Provider::Capmox,
            },
            user: self
                .names
                .user
                .clone()
                .unwrap_or_else(|| tenant.default_user()),
            tokens: Tokens {
                csi: self.names.csi_token.clone(),
                ccm: self.names.ccm_token.clone(),
            },
            role_prefix: self.names.role_prefix.clone(),
            optional: Optional {
                ha: self.ha,
                agent: self.guest_agent,
            },
            tenant,
        };
        if plan.tokens.csi == plan.tokens.ccm {
            return Failure::refused("the two tokens need different names");
        }
        checked(plan)
    }
}

/// What the controllers would refuse is refused here: the config is read as they will read it.
fn checked(plan: Plan) -> Result<Plan, Failure> {
    for program in plan::PROGRAMS {
        let placeholder = secret::placeholder(&plan, program);
        let config = secret::config(&plan, program, &placeholder);
        Config::of_texts(&config, &secret::policy(&plan))?;
    }
    Ok(plan)
}

impl ReachedArguments {
    /// Read as the config is read.
    fn endpoints(&self) -> Result<Vec<EndpointConfig>, Failure> {
        let ca = self.ca_file.as_deref().map(ca).transpose()?;
        if !self.fingerprint.is_empty() && self.fingerprint.len() != self.endpoint.len() {
            return Failure::refused(format!(
                "there are {} endpoints and {} fingerprints: each certificate has its own",
                self.endpoint.len(),
                self.fingerprint.len()
            ));
        }
        let member = |(index, url): (usize, &String)| {
            let mut member = json!({ "url": url });
            let trust = match (&ca, self.fingerprint.get(index)) {
                (Some(pem), _) => Some(("ca", pem)),
                (None, Some(fingerprint)) => Some(("fingerprint", fingerprint)),
                (None, None) => None,
            };
            if let (Some((key, value)), Some(map)) = (trust, member.as_object_mut()) {
                map.insert(key.to_owned(), json!(value));
            }
            member
        };
        let endpoints: Vec<_> = self.endpoint.iter().enumerate().map(member).collect();
        let main = json!({ "regions": { "region": {
            "endpoints": endpoints,
            "token": { "id": "nobody@pve!none", "secret": "none" },
        }}});
        let policy = json!({ "regions": { "region": {
            "pool": "pool", "storages": [], "nodes": [], "owners": { "default": 100 },
        }}});
        let config = Config::of_texts(&main.to_string(), &policy.to_string())?;
        let region = config.regions.into_values().next();
        Ok(region.map(|region| region.endpoints).unwrap_or_default())
    }
}

fn ca(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(CA_MAX).read_to_string(&mut text));
    read.or_else(|error| Failure::refused(format!("cannot read {}: {error}", path.display())))?;
    Ok(text)
}

fn label(text: &str, most: usize) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let ends = text.starts_with('-') || text.ends_with('-');
    !text.is_empty() && text.len() <= most && text.bytes().all(inner) && !ends
}

fn namespace(text: &str) -> Result<String, String> {
    let valid = label(text, NAMESPACE_MAX).then(|| text.to_owned());
    valid.ok_or("must be the name of a namespace".to_owned())
}

fn release(text: &str) -> Result<String, String> {
    let valid = label(text, RELEASE_MAX).then(|| text.to_owned());
    valid.ok_or("must be the name of a release: lower case, digits and -, at most 53".to_owned())
}

/// PVE takes more in a user's name than a shell takes unquoted.
fn user(text: &str) -> Result<String, String> {
    let plain = |word: &str| {
        let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        !word.is_empty() && word.bytes().all(inner)
    };
    let valid = text.len() <= 64
        && text
            .rsplit_once('@')
            .is_some_and(|(user, realm)| plain(user) && plain(realm));
    valid
        .then(|| text.to_owned())
        .ok_or("must be <user>@<realm>".to_owned())
}

fn token_name(text: &str) -> Result<String, String> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let valid = text.len() > 1
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(inner);
    valid
        .then(|| text.to_owned())
        .ok_or("must be the name of a token: a letter, then letters, digits, . - _".to_owned())
}

/// PVE keeps names that begin with `PVE` for itself.
fn role_prefix(text: &str) -> Result<String, String> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let own = text.to_ascii_lowercase().starts_with("pve");
    let valid = text.bytes().all(inner) && !own;
    valid
        .then(|| text.to_owned())
        .ok_or("must be letters, digits, . - _ and must not begin with PVE".to_owned())
}
