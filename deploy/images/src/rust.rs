//! Compiles the programs: static, for either platform, with nothing of this machine in them.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::arch::Arch;
use crate::debian::{Apt, Archive, unpack_to};
use crate::run::{command, find, output, repository, shown};

/// The release of Debian whose Rust is taken where rustup's has no library for the platform: the one with the newest.
const NEWEST: &str = "sid";

/// A compiler that has a standard library for the platform.
#[derive(Debug)]
enum Compiler {
    /// That of `rust-toolchain.toml`.
    Own,
    /// Debian's, which a script runs.
    Debian(PathBuf),
}

/// Where compiled programs lie, and how they were compiled.
#[derive(Debug)]
pub(crate) struct Programs {
    /// The folder that they are in.
    pub(crate) folder: PathBuf,
    /// The compiler, for people.
    pub(crate) compiler: String,
}

/// Compiles the packages of these names for `arch`. `target` is cargo's folder, `cache` where a second compiler may lie.
pub(crate) fn compile(
    packages: &[&str],
    arch: Arch,
    target: &Path,
    cache: &Path,
) -> Result<Programs> {
    let linker = linker(arch)?;
    let compiler = compiler(arch, cache)?;
    let target = match compiler {
        Compiler::Own => target.to_owned(),
        Compiler::Debian(_) => target.join("debian-rust"),
    };
    let mut cargo = command("cargo");
    cargo
        .current_dir(repository()?)
        .args([
            "build",
            "--locked",
            "--release",
            "--bins",
            "--target",
            arch.target(),
        ])
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_INCREMENTAL", "0")
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            flags(linker.as_deref(), &target)?,
        )
        .env_remove("RUSTFLAGS");
    if let Some(linker) = &linker {
        cargo.env(format!("CC_{}", arch.target().replace('-', "_")), linker);
    }
    for package in packages {
        cargo.args(["--package", package]);
    }
    if let Compiler::Debian(script) = &compiler {
        cargo.env("RUSTC", script);
    }
    shown(&mut cargo)?;
    Ok(Programs {
        folder: target.join(arch.target()).join("release"),
        compiler: output(rustc(&compiler).arg("--version"))?.trim().to_owned(),
    })
}

fn rustc(compiler: &Compiler) -> Command {
    match compiler {
        Compiler::Own => command("rustc"),
        Compiler::Debian(script) => command(script),
    }
}

/// The cross compiler that links for `arch`, if it takes one; `ring` is compiled with it, too.
fn linker(arch: Arch) -> Result<Option<String>> {
    if Arch::host() == Some(arch) {
        ensure!(
            find("cc").is_some(),
            "no C compiler (packages gcc, libc6-dev)"
        );
        return Ok(None);
    }
    let name = format!("{}-gcc", arch.triplet());
    ensure!(
        find(&name).is_some(),
        "{name} is missing: apt-get install gcc-{} libc6-dev-{arch}-cross",
        arch.triplet().replace('_', "-")
    );
    Ok(Some(name))
}

/// Static, and with other paths in the place of this machine's, so that two machines make the same programs.
fn flags(linker: Option<&str>, target: &Path) -> Result<OsString> {
    let paths = [
        (cargo_home()?.join("registry/src"), "/crates"),
        (repository()?, "/src"),
        (target.to_owned(), "/out"),
    ];
    let mut flags = OsString::from("-Ctarget-feature=+crt-static");
    if let Some(linker) = linker {
        flags.push(format!("\u{1f}-Clinker={linker}"));
    }
    for (path, replacement) in paths {
        flags.push("\u{1f}--remap-path-prefix=");
        flags.push(path);
        flags.push(format!("={replacement}"));
    }
    Ok(flags)
}

/// Where cargo keeps what it downloads.
pub(crate) fn cargo_home() -> Result<PathBuf> {
    let set = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    set.or_else(home)
        .context("neither CARGO_HOME nor HOME is set")
}

fn compiler(arch: Arch, cache: &Path) -> Result<Compiler> {
    if has_library(&mut command("rustc"), arch) {
        return Ok(Compiler::Own);
    }
    let wanted = format!("rustup target add {}", arch.target());
    if find("apt-get").is_none() {
        bail!("Rust has no library for {}: {wanted}", arch.target());
    }
    let debian = debian(arch, cache).with_context(|| {
        format!(
            "Rust has no library for {} ({wanted}), and Debian's Rust could not be used",
            arch.target()
        )
    })?;
    Ok(Compiler::Debian(debian))
}

fn has_library(rustc: &mut Command, arch: Arch) -> bool {
    let folder = output(rustc.args(["--print", "target-libdir", "--target", arch.target()]));
    let Ok(entries) = folder.and_then(|folder| Ok(std::fs::read_dir(folder.trim())?)) else {
        return false;
    };
    entries
        .filter_map(Result::ok)
        .any(|entry| entry.file_name().to_string_lossy().starts_with("libstd-"))
}

/// A script that runs the Rust of Debian's newest release, with the libraries of that release and the standard library
/// for `arch`; nothing is installed.
fn debian(arch: Arch, cache: &Path) -> Result<PathBuf> {
    let host = Arch::host().context("this machine is neither amd64 nor arm64")?;
    let root = cache.join(format!("rust-{NEWEST}-{arch}"));
    let script = root.join("rustc");
    if script.is_file() {
        return Ok(script);
    }
    let apt = Apt::new(&root.join("apt"), &Archive::suite(NEWEST), &[host, arch])?;
    let library = format!("libstd-rust-dev:{arch}");
    // Of the other platform only the library: nothing of it is run here.
    let debs = apt.closure(&["rustc", &library], |deb| {
        [host.name(), "all"].contains(&deb.arch.as_str()) || deb.name == "libstd-rust-dev"
    })?;
    let system = root.join("root");
    std::fs::create_dir_all(&system)?;
    for deb in apt.download(&debs)? {
        unpack_to(&deb, &system)?;
    }
    let libraries = system.join("usr/lib").join(host.triplet());
    let loader = ["ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"]
        .map(|name| libraries.join(name))
        .into_iter()
        .find(|path| path.exists())
        .context("no loader among Debian's libraries")?;
    let mut text = "#!/bin/sh\n".to_owned();
    writeln!(
        text,
        "exec '{}' --library-path '{}' '{}' --sysroot '{}' \"$@\"",
        loader.display(),
        libraries.display(),
        system.join("usr/bin/rustc").display(),
        system.join("usr").display()
    )?;
    // Renamed when it is known to work: a script that is there counts.
    let tried = root.join("rustc.new");
    std::fs::write(&tried, text)?;
    std::fs::set_permissions(&tried, std::fs::Permissions::from_mode(0o755))?;
    check_version(&output(command(&tried).arg("--version"))?)?;
    ensure!(
        has_library(&mut command(&tried), arch),
        "it has no library for {arch}"
    );
    std::fs::rename(&tried, &script)?;
    Ok(script)
}

/// Of `rustc 1.97.1 (…)`: whether that is new enough for the workspace.
fn check_version(said: &str) -> Result<()> {
    let minor = |version: &str| -> Option<(u32, u32)> {
        let mut parts = version.split('.').map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    };
    let needed =
        minor(env!("CARGO_PKG_RUST_VERSION")).context("the workspace names no version of Rust")?;
    let found = said
        .split(' ')
        .nth(1)
        .and_then(minor)
        .context("a version of Rust")?;
    ensure!(
        found >= needed,
        "{} is older than {}",
        said.trim(),
        env!("CARGO_PKG_RUST_VERSION")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_rust_than_the_workspace_needs_is_refused() {
        check_version("rustc 1.97.1 (8bab26f4f 2026-07-14)").unwrap();
        check_version("rustc 2.0.0 (8bab26f4f 2026-07-14)").unwrap();
        let error = check_version("rustc 1.85.1 (4eb161250 2025-03-15)").unwrap_err();
        assert!(error.to_string().contains("1.85.1"), "{error}");
    }

    #[test]
    fn the_flags_leave_no_path_of_this_machine_in_a_program() {
        let flags = flags(Some("some-gcc"), Path::new("/somewhere/target")).unwrap();
        let flags = flags.to_str().unwrap();
        for (path, replacement) in [
            (repository().unwrap(), "/src"),
            (PathBuf::from("/somewhere/target"), "/out"),
            (cargo_home().unwrap().join("registry/src"), "/crates"),
        ] {
            let wanted = format!("--remap-path-prefix={}={replacement}", path.display());
            assert!(
                flags.split('\u{1f}').any(|flag| flag == wanted),
                "{wanted} in {flags}"
            );
        }
    }
}
