//! Packages of Debian: apt resolves, downloads and verifies them in a folder of its own, whatever this machine has
//! installed and of whatever platform it is; `dpkg-deb` opens them. No script of a package is run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::arch::Arch;
use crate::layer::Tree;
use crate::run::{command, need, output};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// What Debian's slim images leave out; licences stay.
const LEFT_OUT: [&str; 6] = [
    "usr/share/doc/",
    "usr/share/man/",
    "usr/share/info/",
    "usr/share/locale/",
    "usr/share/lintian/",
    "usr/share/bash-completion/",
];

/// A state of apt that has nothing installed.
#[derive(Debug)]
pub(crate) struct Apt {
    root: PathBuf,
    options: Vec<String>,
}

/// Where packages come from: the mirror of today, or the archive as it was at a time (`20261201T000000Z`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Archive<'a> {
    pub(crate) snapshot: Option<&'a str>,
}

impl Archive<'_> {
    /// The sources of a release with its updates and security fixes.
    pub(crate) fn release(self, suite: &str) -> String {
        let (main, security) = match self.snapshot {
            None => (
                "http://deb.debian.org/debian".to_owned(),
                "http://deb.debian.org/debian-security".to_owned(),
            ),
            Some(time) => (
                format!("http://snapshot.debian.org/archive/debian/{time}"),
                format!("http://snapshot.debian.org/archive/debian-security/{time}"),
            ),
        };
        // Lists of an archive as it was are older than they say they may be; those of today must not be.
        let age = self.snapshot.map_or("", |_| " check-valid-until=no");
        [
            line(age, &main, suite),
            line(age, &main, &format!("{suite}-updates")),
            line(age, &security, &format!("{suite}-security")),
        ]
        .concat()
    }

    /// The source of one suite alone, of today.
    pub(crate) fn suite(suite: &str) -> String {
        line("", "http://deb.debian.org/debian", suite)
    }
}

fn line(age: &str, url: &str, suite: &str) -> String {
    format!("deb [signed-by={KEYRING}{age}] {url} {suite} main\n")
}

impl Apt {
    /// Reads the lists of `sources` for `arches`; the first is the one that packages are for if nothing else is said.
    pub(crate) fn new(root: &Path, sources: &str, arches: &[Arch]) -> Result<Self> {
        need(&[("apt-get", "apt"), ("dpkg-deb", "dpkg")])?;
        ensure!(
            Path::new(KEYRING).is_file(),
            "{KEYRING} is missing (package debian-archive-keyring)"
        );
        for folder in ["lists/partial", "cache/archives/partial", "etc"] {
            std::fs::create_dir_all(root.join(folder))?;
        }
        let at = |name: &str| root.join(name).display().to_string();
        std::fs::write(root.join("etc/sources.list"), sources)?;
        std::fs::write(root.join("status"), "")?;
        let mut options = vec![
            format!("Dir::Etc::sourcelist={}", at("etc/sources.list")),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            format!("Dir::State::lists={}", at("lists")),
            format!("Dir::State::status={}", at("status")),
            format!("Dir::State::extended_states={}", at("extended")),
            format!("Dir::Cache={}", at("cache")),
            // The folder is the caller's, and `_apt` could not write to it.
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ];
        let first = arches.first().context("no platform")?;
        options.push(format!("APT::Architecture={first}"));
        options.extend(
            arches
                .iter()
                .map(|arch| format!("APT::Architectures::={arch}")),
        );
        let apt = Self {
            root: root.to_owned(),
            options,
        };
        output(apt.get().arg("update"))?;
        Ok(apt)
    }

    fn get(&self) -> Command {
        let mut apt = command("apt-get");
        for option in &self.options {
            apt.arg("-o").arg(option);
        }
        apt.arg("-qq");
        apt
    }

    /// The packages and all that they depend on, as apt names their files, where `wanted` says so.
    pub(crate) fn closure(
        &self,
        packages: &[&str],
        wanted: impl Fn(&Deb) -> bool,
    ) -> Result<BTreeSet<Deb>> {
        let listed = output(
            self.get()
                .args(["install", "--print-uris", "--no-install-recommends"])
                .args(packages),
        )?;
        let files = listed.lines().filter_map(|line| line.split(' ').nth(1));
        let all: BTreeSet<Deb> = files.map(Deb::parse).collect::<Result<_>>()?;
        ensure!(!all.is_empty(), "apt knows none of {packages:?}");
        Ok(all.into_iter().filter(wanted).collect())
    }

    /// Downloads them, verified by the signed lists: their files.
    pub(crate) fn download(&self, debs: &BTreeSet<Deb>) -> Result<Vec<PathBuf>> {
        let folder = self.root.join("debs");
        std::fs::create_dir_all(&folder)?;
        output(
            self.get()
                .current_dir(&folder)
                .arg("download")
                .args(debs.iter().map(Deb::exact)),
        )?;
        let files = debs.iter().map(|deb| folder.join(&deb.file));
        files
            .map(|file| {
                ensure!(file.is_file(), "apt did not download {}", file.display());
                Ok(file)
            })
            .collect()
    }
}

/// One package in one version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deb {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) arch: String,
    file: String,
}

impl Deb {
    /// Reads `libc6_1%3a2.41-12_arm64.deb`.
    fn parse(file: &str) -> Result<Self> {
        let parts: Vec<&str> = file
            .strip_suffix(".deb")
            .unwrap_or_default()
            .split('_')
            .collect();
        let [name, version, arch] = parts.as_slice() else {
            anyhow::bail!("{file} is not the name of a package's file");
        };
        Ok(Self {
            name: (*name).to_owned(),
            version: version
                .replace("%3a", ":")
                .replace("%7e", "~")
                .replace("%2b", "+"),
            arch: (*arch).to_owned(),
            file: file.to_owned(),
        })
    }

    fn exact(&self) -> String {
        let Self {
            name,
            version,
            arch,
            ..
        } = self;
        if arch == "all" {
            format!("{name}={version}")
        } else {
            format!("{name}:{arch}={version}")
        }
    }
}

/// Adds a package's files to a tree, less what slim images leave out.
pub(crate) fn unpack(deb: &Path, tree: &mut Tree) -> Result<()> {
    let mut opened = command("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(deb)
        .stdout(Stdio::piped())
        .spawn()
        .context("start dpkg-deb")?;
    let out = opened.stdout.take().context("output of dpkg-deb")?;
    let mut out = std::io::BufReader::new(out);
    let unpacked = tree.unpack(&mut out, in_slim);
    // What follows the archive's end: without a reader dpkg-deb would fail.
    std::io::copy(&mut out, &mut std::io::sink())?;
    ensure!(
        opened.wait()?.success(),
        "{} can't be opened",
        deb.display()
    );
    unpacked.with_context(|| deb.display().to_string())
}

/// Unpacks a package below a folder.
pub(crate) fn unpack_to(deb: &Path, folder: &Path) -> Result<()> {
    output(command("dpkg-deb").arg("-x").arg(deb).arg(folder)).map(drop)
}

fn in_slim(path: &str) -> bool {
    path.ends_with("/copyright") || !LEFT_OUT.iter().any(|folder| path.starts_with(folder))
}

/// The root of Debian's slim image with `packages`: what is essential, the packages and what they need, unpacked; the few
/// files that their scripts would have made are made here.
pub(crate) fn root(apt: &Apt, packages: &[&str]) -> Result<(Tree, BTreeSet<Deb>)> {
    let mut names = vec!["?essential"];
    names.extend(packages);
    let debs = apt.closure(&names, |_| true)?;
    let mut tree = Tree::default();
    let mut status = String::new();
    for file in apt.download(&debs)? {
        unpack(&file, &mut tree)?;
        let control = output(command("dpkg-deb").arg("-f").arg(&file))?;
        status.push_str(&installed(&control)?);
    }
    for name in ["passwd", "group"] {
        let master = format!("usr/share/base-passwd/{name}.master");
        let master = tree.get(&master).with_context(|| format!("no {master}"))?;
        let crate::layer::Kind::File(bytes) = &master.kind else {
            anyhow::bail!("{name}.master is not a file");
        };
        let bytes = bytes.clone();
        tree.put(&format!("/etc/{name}"), 0o644, bytes)?;
    }
    // Programs of e2fsprogs look there for what is mounted.
    tree.link("/etc/mtab", "../proc/self/mounts")?;
    tree.put("/var/lib/dpkg/status", 0o644, status.into_bytes())?;
    Ok((tree, debs))
}

/// A package's entry in dpkg's status, by which scanners know what is in an image.
fn installed(control: &str) -> Result<String> {
    let (first, rest) = control
        .split_once('\n')
        .context("a control file of one line")?;
    ensure!(
        first.starts_with("Package: "),
        "{first}: a control file begins with its package"
    );
    Ok(format!(
        "{first}\nStatus: install ok installed\n{}\n\n",
        rest.trim_end()
    ))
}

#[cfg(test)]
#[path = "debian_tests.rs"]
mod tests;
