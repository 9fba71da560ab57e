//! The arguments of every container are those that its program takes, and those of the sidecars the ones that are tested.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use harness::cluster::sidecar_flags;
use harness::process::built;
use harness::requirements::peer;

use crate::VALUES;
use crate::helm::Half::Management;
use crate::helm::{HALVES, Helm, with_sets};
use crate::objects::{container, containers, list, pods, text, texts};

/// What a program says of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Takes {
    Nothing,
    /// Of Go's booleans: true without a value.
    Boolean,
    Anything,
    OneOf(Vec<String>),
}

#[test]
fn every_argument_is_one_that_the_real_program_takes() -> Result<()> {
    let Some(helm) = Helm::find("chart: arguments")? else {
        return Ok(());
    };
    let mut programs = BTreeMap::new();
    for half in HALVES {
        for values in VALUES {
            for (object, pod) in pods(&helm.of_values(half, values)?.objects) {
                for container in containers(pod) {
                    let name = text(container, "/name").to_owned();
                    if !programs.contains_key(&name) {
                        programs.insert(name.clone(), flags_of(&name)?);
                    }
                    let known = programs.get(&name).context("no such program")?;
                    for argument in texts(container, "/args") {
                        let verb = is_pvectl(&name) && argument == "teardown";
                        ensure!(
                            verb || accepts(known, argument),
                            "{values} {object} {name} does not take {argument:?}"
                        );
                    }
                }
            }
        }
    }
    ensure!(programs.len() == 10, "{:?}", programs.keys());
    Ok(())
}

/// The comparison itself sees what it is for.
#[test]
fn an_argument_that_no_program_takes_would_be_seen() {
    let clap = parse_help(
        "\
Usage: it [OPTIONS]

Options:
  -a, --alpha <ALPHA>
          A value

          Possible values:
          - json: one
          - text: the other

      --beta
          Something
      --gamma <GAMMA>  More [possible values: one, two]
      --delta <DELTA>  More
",
    );
    let go = parse_help(
        "\
Usage of it:
  -epsilon int
        Go's flag
  -zeta
        A boolean
      --eta                 Another one
  -t, --theta Level         Go's pflag
",
    );
    let good = ["--alpha=json", "--beta", "--gamma=two", "--delta=x"];
    let bad = [
        "--alfa=json",
        "--alpha=xml",
        "--alpha",
        "--beta=1",
        "--gamma=three",
        "beta",
        "--delta",
        "-a",
    ];
    assert!(good.iter().all(|flag| accepts(&clap, flag)), "{clap:?}");
    assert!(!bad.iter().any(|flag| accepts(&clap, flag)), "{clap:?}");
    let good = [
        "--epsilon=1",
        "--zeta",
        "--zeta=false",
        "--eta=true",
        "--theta=2",
    ];
    let bad = ["--epsilon", "--zeta=no", "--iota", "--theta"];
    assert!(good.iter().all(|flag| accepts(&go, flag)), "{go:?}");
    assert!(!bad.iter().any(|flag| accepts(&go, flag)), "{go:?}");
}

/// Design and tests say which: a sidecar with other flags is another driver.
#[test]
fn the_sidecars_run_with_the_flags_that_are_tested() -> Result<()> {
    let Some(helm) = Helm::find("chart: flags of sidecars")? else {
        return Ok(());
    };
    let rendered = helm.of_values(Management, "default")?;
    let objects = &rendered.objects;
    for name in ["csi-provisioner", "csi-attacher", "csi-resizer"] {
        let found = texts(container(objects, name)?, "/args");
        let kubeconfig = format!("--kubeconfig=/run/pve-cloud/kubeconfig/files/{name}.kubeconfig");
        let mut wanted = vec![
            kubeconfig,
            "--csi-address=/csi/csi.sock".into(),
            "--v=2".into(),
        ];
        wanted.extend(sidecar_flags(name).map(str::to_owned));
        ensure!(found == wanted, "{name}: {found:?}");
    }
    Ok(())
}

/// The list of the design, to the letter.
#[test]
fn the_provisioner_tells_capacities_unless_that_is_turned_off() -> Result<()> {
    let Some(helm) = Helm::find("chart: capacity")? else {
        return Ok(());
    };
    let always = [
        "--timeout=3m",
        "--leader-election=false",
        "--worker-threads=10",
        "--strict-topology",
        "--default-fstype=ext4",
        "--extra-create-metadata",
    ];
    let capacity = ["--enable-capacity", "--capacity-ownerref-level=-1"];
    for is in [true, false] {
        let set = format!("csi.capacity.enabled={is}");
        let objects = helm
            .rendered(Management, &with_sets(Management, &[&set]))?
            .objects;
        let provisioner = container(&objects, "csi-provisioner")?;
        let found = texts(provisioner, "/args");
        let found = found.get(3..).unwrap_or_default();
        let with = capacity.iter().filter(|_| is);
        ensure!(found.iter().eq(always.iter().chain(with)), "{found:?}");
        let namespace = list(provisioner, "/env").iter();
        let namespace: Vec<&str> = namespace.map(|one| text(one, "/value")).collect();
        ensure!(
            namespace == if is { vec!["pve-cloud"] } else { vec![] },
            "{namespace:?}"
        );
    }
    Ok(())
}

fn is_pvectl(container: &str) -> bool {
    container == "teardown" || container == "cleanup"
}

fn program(container: &str) -> Result<PathBuf> {
    let ours = match container {
        "csi-controller" => "pve-csi-controller",
        "ccm" => "pve-ccm",
        "csi-node" => "pve-csi-node",
        "credentials" | "init-credentials" => "pve-credentials",
        "teardown" | "cleanup" => "pvectl",
        "csi-provisioner" | "csi-attacher" | "csi-resizer" => {
            return peer("cluster", container).map_err(anyhow::Error::msg);
        }
        other => bail!("what is the program of {other}?"),
    };
    built(ours)
}

#[expect(
    clippy::disallowed_methods,
    reason = "whose help is asked is a program"
)]
fn flags_of(container: &str) -> Result<BTreeMap<String, Takes>> {
    let mut command = Command::new(program(container)?);
    if is_pvectl(container) {
        command.arg("teardown");
    }
    let output = command.arg("--help").output()?;
    let help = [output.stdout, output.stderr].concat();
    let flags = parse_help(&String::from_utf8_lossy(&help));
    ensure!(flags.len() > 4, "{container} --help names {flags:?}");
    Ok(flags)
}

/// The flags of a `--help` of clap, or of Go's `flag` or `pflag`, which begin with "Usage of".
fn parse_help(help: &str) -> BTreeMap<String, Takes> {
    let mut flags = BTreeMap::new();
    let mut last = None;
    let read = if help.contains("Usage of ") {
        go_flag
    } else {
        clap_flag
    };
    for line in help.lines() {
        let text = line.trim_start();
        let depth = line.len() - text.len();
        if let Some((name, takes)) = read(text).filter(|_| depth <= 6) {
            flags.insert(name.clone(), takes);
            last = Some(name);
        }
        let choices = choices(text);
        if let Some(Takes::OneOf(words)) = last.as_ref().and_then(|name| flags.get_mut(name)) {
            words.extend(choices);
        } else if let Some(name) = &last
            && !choices.is_empty()
        {
            flags.insert(name.clone(), Takes::OneOf(choices));
        }
    }
    flags
}

/// `-a, --alpha <ALPHA>`, or `--beta`.
fn clap_flag(text: &str) -> Option<(String, Takes)> {
    let (name, rest) = split_name(long_form(text)?.strip_prefix("--")?)?;
    let takes = if rest.trim_start().starts_with('<') {
        Takes::Anything
    } else {
        Takes::Nothing
    };
    Some((name, takes))
}

/// `-v, --v Level   what it is`, or `-alpha string`. One blank is before the type, more are before what it is.
fn go_flag(text: &str) -> Option<(String, Takes)> {
    let text = long_form(text)?;
    let (name, rest) = split_name(text.strip_prefix("--").or(text.strip_prefix('-'))?)?;
    let has_type = rest.starts_with(' ') && !rest.starts_with("  ");
    Some((
        name,
        if has_type {
            Takes::Anything
        } else {
            Takes::Boolean
        },
    ))
}

/// Without the short form that stands before the long one.
fn long_form(text: &str) -> Option<&str> {
    let has_short = text.starts_with('-') && text.get(2..4) == Some(", ");
    if has_short { text.get(4..) } else { Some(text) }
}

fn split_name(text: &str) -> Option<(String, &str)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let ends = rest.is_empty() || rest.starts_with(' ');
    (ends && !name.is_empty()).then(|| (name.to_owned(), rest))
}

/// `[possible values: a, b]` of clap's short help, or `- a: what it is` of its long one.
fn choices(text: &str) -> Vec<String> {
    if let Some((_, rest)) = text.split_once("[possible values: ") {
        let words = rest.split(']').next().unwrap_or_default().split(", ");
        return words.map(str::to_owned).collect();
    }
    let item = text
        .strip_prefix("- ")
        .and_then(|rest| rest.split(':').next());
    item.filter(|word| !word.contains(' '))
        .map(str::to_owned)
        .into_iter()
        .collect()
}

fn accepts(known: &BTreeMap<String, Takes>, argument: &str) -> bool {
    let Some(flag) = argument.strip_prefix("--") else {
        return false;
    };
    let (name, value) = match flag.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (flag, None),
    };
    match (known.get(name), value) {
        (Some(Takes::Nothing | Takes::Boolean), None)
        | (Some(Takes::Boolean), Some("true" | "false"))
        | (Some(Takes::Anything), Some(_)) => true,
        (Some(Takes::OneOf(words)), Some(value)) => words.iter().any(|word| word == value),
        _ => false,
    }
}
