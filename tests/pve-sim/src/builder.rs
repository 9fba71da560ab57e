//! Describing and starting a simulator from Rust.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::clock::ClockMode;
use crate::handle::SimHandle;
use crate::sim::{Settings, Timing};
use crate::state::{
    AclEntry, Node, Pool, State, Storage, StorageKind, Token, User, Vm, VmNumber, Volume,
};
use crate::{SimError, handle};

/// What stands under the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HardwareKind {
    /// No bytes, no devices.
    Memory,
    /// Sparse files and loop devices below this directory.
    Loop { run_dir: PathBuf },
}

/// Options of a storage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StorageOptions {
    pub shared: bool,
    /// Bytes; 0 for the default.
    pub total: u64,
}

/// What a token may do: role by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenGrant {
    /// `user@realm!token`.
    pub id: String,
    pub secret: String,
    pub privsep: bool,
    /// Path and role, given to the user and, with `privsep`, to the token too.
    pub roles: Vec<(String, String)>,
}

/// A simulator in the making.
#[derive(Debug)]
pub struct Builder {
    pub(crate) state: State,
    pub(crate) settings: Settings,
    pub(crate) hardware: HardwareKind,
    pub(crate) listen: SocketAddr,
    pub(crate) control: SocketAddr,
    pub(crate) tls: bool,
    pub(crate) endpoints: Vec<String>,
}

impl Default for Builder {
    fn default() -> Self {
        let mut state = State::default();
        state.users.insert("root@pam".to_owned(), User::default());
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            state,
            settings: Settings {
                clock: ClockMode::Real { speed: 1 },
                timing: Timing::ZERO,
                seed: 1,
            },
            hardware: HardwareKind::Memory,
            listen: any,
            control: any,
            tls: true,
            endpoints: Vec::new(),
        }
    }
}

impl Builder {
    /// Starts from a whole state (a scenario file).
    #[must_use]
    pub fn state(mut self, state: State) -> Self {
        self.state = state;
        self.state.users.entry("root@pam".to_owned()).or_default();
        self
    }

    /// Reads a scenario file's text.
    pub fn scenario(self, json: &str) -> Result<Self, SimError> {
        let state =
            serde_json::from_str(json).map_err(|error| SimError::Scenario(error.to_string()))?;
        Ok(self.state(state))
    }

    #[must_use]
    pub fn node(mut self, name: &str) -> Self {
        let ip = format!("10.99.0.{}", self.state.nodes.len() + 1);
        self.state.nodes.insert(
            name.to_owned(),
            Node {
                ip,
                ..Node::default()
            },
        );
        self
    }

    /// A `dir` storage with images below `/var/lib/<id>`.
    #[must_use]
    pub fn storage_dir(mut self, id: &str, options: StorageOptions) -> Self {
        let storage = Storage {
            path: format!("/var/lib/{id}"),
            ..sized(options)
        };
        self.state.storages.insert(id.to_owned(), storage);
        self
    }

    /// An `lvmthin` storage on a volume group of the same name.
    #[must_use]
    pub fn storage_lvmthin(mut self, id: &str, options: StorageOptions) -> Self {
        let storage = Storage {
            kind: StorageKind::LvmThin,
            vgname: id.to_owned(),
            thinpool: "data".to_owned(),
            ..sized(options)
        };
        self.state.storages.insert(id.to_owned(), storage);
        self
    }

    /// A storage in full detail.
    #[must_use]
    pub fn storage(mut self, id: &str, storage: Storage) -> Self {
        self.state.storages.insert(id.to_owned(), storage);
        self
    }

    #[must_use]
    pub fn pool(mut self, name: &str, vms: &[VmNumber]) -> Self {
        self.state.pools.insert(
            name.to_owned(),
            Pool {
                vms: vms.iter().copied().collect(),
                ..Pool::default()
            },
        );
        self
    }

    /// A running VM with `scsihw: virtio-scsi-single` and the given name.
    #[must_use]
    pub fn vm(self, vmid: VmNumber, node: &str, name: &str) -> Self {
        let options = [
            ("name", name),
            ("memory", "2048"),
            ("cores", "2"),
            ("scsihw", "virtio-scsi-single"),
            ("agent", "1"),
        ];
        self.vm_with(vmid, node, &options, true)
    }

    /// A VM with these config options; `smbios1` gets a uuid made of the VMID unless given.
    #[must_use]
    pub fn vm_with(
        mut self,
        vmid: VmNumber,
        node: &str,
        options: &[(&str, &str)],
        running: bool,
    ) -> Self {
        let mut config: BTreeMap<String, String> = options
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        config
            .entry("smbios1".to_owned())
            .or_insert_with(|| format!("uuid=00000000-0000-4000-a000-{vmid:012}"));
        self.state.vms.insert(
            vmid,
            Vm {
                node: node.to_owned(),
                config,
                running,
                ..Vm::default()
            },
        );
        self
    }

    /// An existing volume; `name` as inside the storage (`9999/vm-9999-x.raw`), node `None` on shared storages.
    #[must_use]
    pub fn volume(mut self, storage: &str, node: Option<&str>, name: &str, bytes: u64) -> Self {
        self.state.volumes.push(Volume {
            storage: storage.to_owned(),
            node: node.map(str::to_owned),
            name: name.to_owned(),
            size: bytes,
            format: "raw".to_owned(),
            ctime: 0,
        });
        self
    }

    #[must_use]
    pub fn role(mut self, name: &str, privileges: &[&str]) -> Self {
        let set: BTreeSet<String> = privileges.iter().map(|p| (*p).to_owned()).collect();
        self.state.roles.insert(name.to_owned(), set);
        self
    }

    /// A user (made if missing) with a token and the roles of both.
    #[must_use]
    pub fn token(mut self, grant: TokenGrant) -> Self {
        let (user, token) = grant.id.split_once('!').unwrap_or((&grant.id, "token"));
        let account = self.state.users.entry(user.to_owned()).or_default();
        account.tokens.insert(
            token.to_owned(),
            Token {
                secret: grant.secret,
                privsep: grant.privsep,
                ..Token::default()
            },
        );
        let subjects = if grant.privsep {
            vec![user.to_owned(), format!("{user}!{token}")]
        } else {
            vec![user.to_owned()]
        };
        for (path, role) in &grant.roles {
            for subject in &subjects {
                let entry = AclEntry {
                    path: path.clone(),
                    subject: subject.clone(),
                    role: role.clone(),
                    propagate: true,
                };
                self.state.acl.push(entry);
            }
        }
        self
    }

    /// A token of `root@pam` with all privileges.
    #[must_use]
    pub fn root_token(self, token: &str, secret: &str) -> Self {
        self.token(TokenGrant {
            id: format!("root@pam!{token}"),
            secret: secret.to_owned(),
            ..TokenGrant::default()
        })
    }

    #[must_use]
    pub fn clock(mut self, mode: ClockMode) -> Self {
        self.settings.clock = mode;
        self
    }

    #[must_use]
    pub fn timing(mut self, timing: Timing) -> Self {
        self.settings.timing = timing;
        self
    }

    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    #[must_use]
    pub fn hardware(mut self, kind: HardwareKind) -> Self {
        self.hardware = kind;
        self
    }

    /// Address of the first PVE node's API; default a free port of 127.0.0.1.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    #[must_use]
    pub fn control_listen(mut self, address: SocketAddr) -> Self {
        self.control = address;
        self
    }

    /// One more API endpoint, served by this PVE node (the first is served by the first node).
    #[must_use]
    pub fn endpoint(mut self, node: &str) -> Self {
        self.endpoints.push(node.to_owned());
        self
    }

    /// Plain HTTP instead of HTTPS.
    #[must_use]
    pub fn insecure_http(mut self) -> Self {
        self.tls = false;
        self
    }

    /// Starts all listeners; running VMs get their devices.
    pub async fn start(self) -> Result<SimHandle, SimError> {
        handle::start(self).await
    }
}

fn sized(options: StorageOptions) -> Storage {
    let default = Storage::default();
    let total = if options.total == 0 {
        default.total
    } else {
        options.total
    };
    Storage {
        shared: options.shared,
        total,
        used: 0,
        ..default
    }
}
