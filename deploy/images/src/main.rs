//! `images`: builds the images of `deploy/images/Dockerfile` as OCI archives without a container engine, and checks them.
//! It must know no more about an image than the Dockerfile says.

mod arch;
mod build;
mod check;
mod debian;
mod dockerfile;
mod elf;
mod layer;
mod oci;
mod run;
mod rust;
mod trial;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};

use crate::arch::Arch;
use crate::build::Parts;
use crate::check::{Forbidden, Seen};
use crate::debian::{Archive, Deb};
use crate::dockerfile::Image;
use crate::layer::Tree;
use crate::oci::Blobs;
use crate::run::{command, output, repository};

/// Under which name the images are kept, before the tag.
const REGISTRY: &str = "ghcr.io/pve-cloud";

/// Builds the images of pve-cloud as OCI archives, without a container engine.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Compile the programs, build the archives, check them, and print their sizes.
    Build {
        #[command(flatten)]
        which: Which,
        /// The time of which Debian's packages are (`20261201T000000Z`), from snapshot.debian.org; else the newest.
        #[arg(long)]
        snapshot: Option<String>,
    },
    /// Compile the programs alone, into a folder; what the Dockerfile does.
    Compile {
        /// For which platform.
        #[arg(long)]
        arch: Arch,
        /// Where the programs go.
        #[arg(long)]
        out: PathBuf,
    },
    /// Check archives that are there.
    Check {
        #[command(flatten)]
        which: Which,
    },
    /// Unpack archives and run their programs, without root's rights and with nothing of this machine; needs root.
    Try {
        #[command(flatten)]
        which: Which,
    },
}

#[derive(Debug, Args)]
struct Which {
    /// The platforms.
    #[arg(long, value_delimiter = ',', default_value = "amd64,arm64")]
    arch: Vec<Arch>,
    /// Only these images.
    #[arg(long)]
    only: Vec<String>,
    /// Cargo's folder for what it builds.
    #[arg(long, env = "CARGO_TARGET_DIR")]
    target_dir: PathBuf,
    /// Where the archives lie; by default `oci` in cargo's folder.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> Result<()> {
    match Arguments::parse().verb {
        Verb::Build { which, snapshot } => {
            let archive = Archive {
                snapshot: snapshot.as_deref(),
            };
            build(&which, archive)?;
            check(&which)
        }
        Verb::Compile { arch, out } => compile(arch, &out),
        Verb::Check { which } => check(&which),
        Verb::Try { which } => try_all(&which),
    }
}

impl Which {
    fn images(&self) -> Result<Vec<Image>> {
        let mut all = all_images()?;
        for name in &self.only {
            ensure!(
                all.iter().any(|image| image.name == *name),
                "the Dockerfile has no image {name}"
            );
        }
        all.retain(|image| self.only.is_empty() || self.only.contains(&image.name));
        Ok(all)
    }

    fn out(&self) -> PathBuf {
        self.out
            .clone()
            .unwrap_or_else(|| self.target_dir.join("oci"))
    }

    fn file(&self, image: &Image) -> PathBuf {
        self.out().join(format!("{}.tar", image.name))
    }

    /// The archive of an image and what it must not hold.
    fn read(&self, image: &Image) -> Result<Vec<Seen>> {
        let file = self.file(image);
        let bytes = std::fs::read(&file).with_context(|| file.display().to_string())?;
        let forbidden = Forbidden::new(self.paths()?)?;
        let seen = check::archive(&bytes, image, &forbidden)
            .with_context(|| file.display().to_string())?;
        let found: Vec<&str> = seen.iter().map(|seen| seen.arch.as_str()).collect();
        let wanted: Vec<&str> = self.arch.iter().map(|arch| arch.name()).collect();
        ensure!(
            found == wanted,
            "{}: built for {found:?}, not {wanted:?}",
            file.display()
        );
        Ok(seen)
    }

    /// Paths of this machine that would tell where an image was built.
    fn paths(&self) -> Result<Vec<String>> {
        let paths = [
            repository()?,
            rust::cargo_home()?,
            self.target_dir.clone(),
            cache()?,
        ];
        Ok(paths
            .iter()
            .map(|path| path.display().to_string())
            .collect())
    }
}

fn all_images() -> Result<Vec<Image>> {
    let arguments = BTreeMap::from([
        ("VERSION", env!("CARGO_PKG_VERSION").to_owned()),
        ("REVISION", revision()?),
    ]);
    let file = repository()?.join("deploy/images/Dockerfile");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    dockerfile::images(&text, &arguments).with_context(|| file.display().to_string())
}

fn git(arguments: &[&str]) -> Result<String> {
    let said = output(command("git").current_dir(repository()?).args(arguments))?;
    Ok(said.trim().to_owned())
}

/// The commit, marked if files differ from it; where there is no git, that it is not known.
fn revision() -> Result<String> {
    if !repository()?.join(".git").exists() {
        return Ok("unknown".to_owned());
    }
    let dirty = !git(&["status", "--porcelain"])?.is_empty();
    let mark = if dirty { "-dirty" } else { "" };
    Ok(format!("{}{mark}", git(&["rev-parse", "HEAD"])?))
}

/// The commit's time, so that the same commit gives the same images; `SOURCE_DATE_EPOCH` overrides it.
fn created() -> Result<String> {
    let set = std::env::var_os("SOURCE_DATE_EPOCH").and_then(|seconds| seconds.into_string().ok());
    let seconds = match set {
        Some(seconds) => seconds,
        None if repository()?.join(".git").exists() => git(&["log", "-1", "--format=%ct"])?,
        None => "0".to_owned(),
    };
    let seconds = seconds
        .parse()
        .with_context(|| format!("{seconds}: seconds since 1970"))?;
    Ok(jiff::Timestamp::from_second(seconds)?.to_string())
}

/// Where things lie that are downloaded once.
fn cache() -> Result<PathBuf> {
    let set = std::env::var_os("PVE_CLOUD_CACHE").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/pve-cloud"));
    set.or_else(home)
        .context("neither PVE_CLOUD_CACHE nor HOME is set")
}

fn compile(arch: Arch, out: &Path) -> Result<()> {
    let images = all_images()?;
    let names = images
        .iter()
        .map(Image::program)
        .collect::<Result<Vec<_>>>()?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or(repository()?.join("target"), PathBuf::from);
    let programs = rust::compile(&names, arch, &target, &cache()?)?;
    std::fs::create_dir_all(out)?;
    for name in names {
        std::fs::copy(programs.folder.join(name), out.join(name))
            .with_context(|| name.to_owned())?;
    }
    Ok(())
}

fn build(which: &Which, archive: Archive) -> Result<()> {
    let images = which.images()?;
    let names = images
        .iter()
        .map(Image::program)
        .collect::<Result<Vec<_>>>()?;
    let (out, created, cache) = (which.out(), created()?, cache()?);
    std::fs::create_dir_all(&out)?;
    let work = tempfile::tempdir()?;
    let authorities = build::authorities(work.path(), archive)?;
    let mut archives: Vec<(Blobs, Vec<oci::Descriptor>)> = Vec::new();
    archives.resize_with(images.len(), Default::default);
    for &arch in &which.arch {
        let programs = rust::compile(&names, arch, &which.target_dir, &cache)?;
        say(&format!("{arch}: compiled by {}", programs.compiler))?;
        let found = build::roots(&images, arch, work.path(), archive)?;
        let mut roots: BTreeMap<String, Tree> = BTreeMap::new();
        for (suite, (tree, debs)) in found {
            std::fs::write(out.join(format!("{suite}-{arch}.packages")), listed(&debs))?;
            roots.insert(suite, tree);
        }
        let parts = Parts {
            arch,
            programs: &programs.folder,
            authorities: &authorities,
            roots: &roots,
        };
        for (image, (blobs, manifests)) in images.iter().zip(&mut archives) {
            manifests.push(build::add(blobs, image, &parts, &created)?);
        }
    }
    for (image, (blobs, manifests)) in images.iter().zip(archives) {
        let name = format!("{REGISTRY}/{}", image.name);
        let bytes = blobs.archive(manifests, &name, env!("CARGO_PKG_VERSION"))?;
        std::fs::write(which.file(image), bytes)?;
    }
    Ok(())
}

fn listed(debs: &[Deb]) -> String {
    let line = |deb: &Deb| format!("{} {} {}\n", deb.name, deb.version, deb.arch);
    debs.iter().map(line).collect()
}

fn check(which: &Which) -> Result<()> {
    for image in which.images()? {
        let bytes = std::fs::read(which.file(&image))?;
        say(&format!(
            "{} {}",
            which.file(&image).display(),
            oci::digest(&bytes)
        ))?;
        for seen in which.read(&image)? {
            let (arch, program, unpacked, packed) =
                (&seen.arch, seen.program, seen.unpacked, seen.packed);
            say(&format!(
                "  {arch:6} program {program:>9}  unpacked {unpacked:>9}  packed {packed:>9} bytes"
            ))?;
        }
    }
    Ok(())
}

fn try_all(which: &Which) -> Result<()> {
    for image in which.images()? {
        for (seen, &arch) in which.read(&image)?.iter().zip(&which.arch) {
            for line in trial::image(&image, arch, &seen.tree)? {
                say(&format!("{} {arch}: {line}", image.name))?;
            }
        }
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

#[cfg(test)]
#[path = "main_tests.rs"]
mod tests;
