//! Runs what is in an image in a root that holds nothing else, with the user of the image; programs of another platform
//! under qemu's emulator.

use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::arch::Arch;
use crate::dockerfile::{Base, Image};
use crate::layer::{Kind, Tree};
use crate::run::{command, find, output, repository};

/// Where the emulator is put.
const EMULATOR: &str = "/.emulator";
/// Where the example of a config is put.
const CONFIG: &str = "/config";
/// Runs what follows user and root.
const IN_ROOT: &str = r#"user=$1 root=$2; shift 2
mount -t proc proc "$root/proc" && exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot --userspec="$user" "$root" "$@""#;
/// Of the node's image: each tool that formats, checks or grows, on a file of this size.
const TOOLS: [&[&str]; 12] = [
    &["truncate", "-s", "400M", "/tmp/disk"],
    &["mkfs.ext4", "-q", "/tmp/disk"],
    &["blkid", "-p", "-s", "TYPE", "-o", "value", "/tmp/disk"],
    &["e2fsck", "-f", "-p", "/tmp/disk"],
    &["truncate", "-s", "500M", "/tmp/disk"],
    &["resize2fs", "/tmp/disk"],
    &["mkfs.xfs", "-q", "-f", "/tmp/disk"],
    &["xfs_repair", "-n", "/tmp/disk"],
    &["mkfs.btrfs", "-q", "-f", "/tmp/disk"],
    &["btrfs", "check", "/tmp/disk"],
    &["cryptsetup", "--version"],
    &["mount", "--version"],
];

/// Runs an image's programs: what they said.
pub(crate) fn image(image: &Image, arch: Arch, tree: &Tree) -> Result<Vec<String>> {
    let folder = tempfile::tempdir()?;
    let root = Root {
        path: folder.path(),
        user: &image.user,
        emulated: Arch::host() != Some(arch),
    };
    root.lay(tree, arch)?;
    let program = format!("/{}", image.program()?);
    let mut said = vec![root.run(&[&program, "--version"])?];
    root.run(&[&program, "--help"])?;
    said.extend(root.check_config(&program)?);
    if image.base != Base::Scratch {
        for tool in TOOLS {
            let out = root.run(tool)?;
            let last = out.lines().last().unwrap_or_default();
            said.push(format!("{}: {last}", tool.join(" ")));
        }
    }
    Ok(said)
}

/// A folder that programs see as the root.
struct Root<'a> {
    path: &'a Path,
    user: &'a str,
    emulated: bool,
}

impl Root<'_> {
    fn lay(&self, tree: &Tree, arch: Arch) -> Result<()> {
        for (path, entry) in tree.iter() {
            let at = self.path.join(path);
            match &entry.kind {
                Kind::Folder => std::fs::create_dir_all(&at)?,
                Kind::File(bytes) => std::fs::write(&at, bytes)?,
                Kind::Symlink(to) => {
                    symlink(to, &at)?;
                    continue;
                }
                Kind::Hardlink(_) => continue,
            }
            let (user, group) = (u32::try_from(entry.owner.0)?, u32::try_from(entry.owner.1)?);
            chown(&at, Some(user), Some(group))
                .with_context(|| format!("{}: needs root", at.display()))?;
            set_mode(&at, entry.mode)?;
        }
        for (path, entry) in tree.iter() {
            if let Kind::Hardlink(to) = &entry.kind {
                std::fs::hard_link(self.path.join(to), self.path.join(path))?;
            }
        }
        std::fs::create_dir_all(self.path.join("proc"))?;
        if self.emulated {
            let name = arch.emulator();
            let emulator = find(name)
                .with_context(|| format!("{name} is missing (package qemu-user-static)"))?;
            let at = self.path.join(EMULATOR.trim_start_matches('/'));
            std::fs::copy(emulator, &at)?;
            set_mode(&at, 0o755)?;
        }
        set_mode(self.path, 0o755)
    }

    fn run(&self, arguments: &[&str]) -> Result<String> {
        // The mount of /proc, which every container has, goes with its namespace.
        let mut chroot = command("unshare");
        chroot.args(["--mount", "--", "sh", "-c", IN_ROOT, "sh"]);
        chroot.arg(self.user).arg(self.path);
        let found = arguments.first().map(|name| self.whole(name)).transpose()?;
        if self.emulated {
            chroot.arg(EMULATOR);
        }
        chroot.args(found).args(arguments.iter().skip(1));
        Ok(output(&mut chroot)?.trim().to_owned())
    }

    /// The path of a program in the root: the emulator does not search.
    fn whole(&self, name: &str) -> Result<String> {
        let paths = [
            String::new(),
            "/usr/sbin/".to_owned(),
            "/usr/bin/".to_owned(),
        ];
        let mut paths = paths.iter().map(|folder| format!("{folder}{name}"));
        paths
            .find(|path| {
                path.starts_with('/') && self.path.join(path.trim_start_matches('/')).exists()
            })
            .with_context(|| format!("the image has no {name}"))
    }

    /// The example of the config, by the programs that read one.
    fn check_config(&self, program: &str) -> Result<Option<String>> {
        let more: &[&str] = match program {
            "/pve-csi-controller" => &[],
            "/pve-ccm" => &["--kubeconfig", "/nowhere"],
            _ => return Ok(None),
        };
        let folder = self.path.join(CONFIG.trim_start_matches('/'));
        std::fs::create_dir(&folder)?;
        let from = repository()?.join("docs/reference/config.example.yaml");
        let to = folder.join("config.yaml");
        std::fs::copy(from, &to)?;
        set_mode(&to, 0o444)?;
        // What it names: an authority, and a token in two files.
        let authorities = self.path.join("etc/ssl/certs/ca-certificates.crt");
        std::fs::copy(authorities, folder.join("dc2-ca.pem"))?;
        std::fs::write(folder.join("dc2-token-id"), "csi@pve!example")?;
        let secret = "00000000-1111-2222-3333-444444444444";
        std::fs::write(folder.join("dc2-token-secret"), secret)?;
        let mut arguments = vec![
            program,
            "--cloud-config",
            "/config/config.yaml",
            "--check-config",
        ];
        arguments.extend(more);
        self.run(&arguments)?;
        arguments.truncate(1);
        arguments.extend(["--cloud-config", "/config/missing.yaml", "--check-config"]);
        arguments.extend(more);
        ensure!(
            self.run(&arguments).is_err(),
            "{program} takes a config that is not there"
        );
        Ok(Some(
            "takes the example of the config, and refuses one that is not there".to_owned(),
        ))
    }
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .with_context(|| path.display().to_string())
}
