//! Reads the stages of `deploy/images/Dockerfile` that are images, so that nothing about an image is said twice.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

/// What the tool does itself in the place of this RUN: the packages and what they need, unpacked.
const INSTALL: &str = "--mount=type=bind,source=deploy/images/node.packages,target=/tmp/node.packages apt-get update \
     && xargs -a /tmp/node.packages apt-get install -y --no-install-recommends && rm -rf /var/lib/apt/lists/*";
/// The stage that compiles; the tool does that itself, too.
const BUILD: &str = "build";

/// What an image begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Base {
    /// Nothing.
    Scratch,
    /// Debian's slim image of this release, with the packages of `node.packages` if they are installed.
    Debian { suite: String, packages: bool },
}

/// A file that an image gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Copy {
    /// Whether it comes from the stage that compiles, else from the repository.
    pub(crate) built: bool,
    /// Its path there.
    pub(crate) source: String,
    /// Its absolute path in the image.
    pub(crate) target: String,
}

/// One image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    /// The stage's name.
    pub(crate) name: String,
    /// What it begins with.
    pub(crate) base: Base,
    /// Its files, in order.
    pub(crate) copies: Vec<Copy>,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// `uid:gid`; Docker's default if empty.
    pub(crate) user: String,
    /// What it runs.
    pub(crate) entry_point: Vec<String>,
}

impl Image {
    /// The program that it runs, which is also the name of a package of the workspace.
    pub(crate) fn program(&self) -> Result<&str> {
        let first = self.entry_point.first().context("no entry point")?;
        first
            .strip_prefix('/')
            .filter(|name| !name.is_empty() && !name.contains('/'))
            .with_context(|| format!("{first}: the program lies in the root"))
    }
}

/// The images of a Dockerfile: the stages with an entry point. `arguments` are what `ARG` lines may name.
pub(crate) fn images(text: &str, arguments: &BTreeMap<&str, String>) -> Result<Vec<Image>> {
    let mut stages: Vec<Image> = Vec::new();
    let mut building = false;
    for line in instructions(text) {
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let rest = rest.trim();
        if word == "FROM" {
            let (base, name) = from(rest).with_context(|| line.clone())?;
            building = name == BUILD;
            if !building {
                stages.push(stage(base, name, &stages)?);
            }
        } else if !building {
            let stage = stages.last_mut().context("an instruction before FROM")?;
            apply(stage, word, rest, arguments).with_context(|| line.clone())?;
        }
    }
    stages.retain(|stage| !stage.entry_point.is_empty());
    ensure!(!stages.is_empty(), "no stage has an ENTRYPOINT");
    Ok(stages)
}

/// Whole instructions: comments gone, continued lines joined, runs of spaces made one.
fn instructions(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut open = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (part, continued) = match line.trim_end().strip_suffix('\\') {
            Some(part) => (part, true),
            None => (line, false),
        };
        for word in part.split_whitespace() {
            if !open.is_empty() {
                open.push(' ');
            }
            open.push_str(word);
        }
        if !continued && !open.is_empty() {
            all.push(std::mem::take(&mut open));
        }
    }
    all
}

fn from(rest: &str) -> Result<(&str, &str)> {
    let words: Vec<&str> = rest
        .split(' ')
        .filter(|word| !word.starts_with("--"))
        .collect();
    match words.as_slice() {
        [base, "AS", name] => Ok((base, name)),
        _ => bail!("every stage is FROM … AS …"),
    }
}

fn stage(base: &str, name: &str, stages: &[Image]) -> Result<Image> {
    if let Some(parent) = stages.iter().find(|stage| stage.name == base) {
        return Ok(Image {
            name: name.to_owned(),
            ..parent.clone()
        });
    }
    let debian = base
        .strip_prefix("debian:")
        .and_then(|tag| tag.strip_suffix("-slim"));
    let base = match (base, debian) {
        ("scratch", _) => Base::Scratch,
        (_, Some(suite)) => Base::Debian {
            suite: suite.to_owned(),
            packages: false,
        },
        _ => bail!("FROM {base}: neither scratch, debian:…-slim nor a stage above"),
    };
    Ok(Image {
        name: name.to_owned(),
        base,
        copies: Vec::new(),
        labels: BTreeMap::new(),
        user: String::new(),
        entry_point: Vec::new(),
    })
}

fn apply(
    image: &mut Image,
    word: &str,
    rest: &str,
    arguments: &BTreeMap<&str, String>,
) -> Result<()> {
    match word {
        "ARG" => ensure!(arguments.contains_key(rest), "no such argument"),
        "LABEL" => image.labels.extend(labels(rest, arguments)?),
        "COPY" => image.copies.push(copy(rest)?),
        "USER" => rest.clone_into(&mut image.user),
        "ENTRYPOINT" => {
            image.entry_point = serde_json::from_str(rest).context("the JSON form, please")?;
        }
        "RUN" => match &mut image.base {
            Base::Debian { packages, .. } if rest == INSTALL => *packages = true,
            _ => bail!("only the RUN that installs node.packages is understood"),
        },
        _ => bail!("this instruction is not understood"),
    }
    Ok(())
}

/// `key="value"` pairs; values hold no quotes.
fn labels(rest: &str, arguments: &BTreeMap<&str, String>) -> Result<Vec<(String, String)>> {
    let mut left = rest.trim();
    let mut all = Vec::new();
    while !left.is_empty() {
        let (key, after) = left.split_once("=\"").context("a label is key=\"value\"")?;
        let (value, after) = after.split_once('"').context("a quote is not closed")?;
        let mut value = value.to_owned();
        for (name, replacement) in arguments {
            value = value.replace(&format!("${{{name}}}"), replacement);
        }
        ensure!(!value.contains('$'), "{key}: an argument that is not known");
        all.push((key.to_owned(), value));
        left = after.trim_start();
    }
    Ok(all)
}

fn copy(rest: &str) -> Result<Copy> {
    let words: Vec<&str> = rest.split(' ').collect();
    let (built, source, target) = match words.as_slice() {
        ["--from=build", source, target] => (true, source, target),
        [source, target] if !source.starts_with("--") => (false, source, target),
        _ => bail!("COPY of one file, from the repository or --from=build"),
    };
    ensure!(
        target.starts_with('/') && !target.ends_with('/'),
        "{target} is not the absolute path of a file"
    );
    Ok(Copy {
        built,
        source: (*source).to_owned(),
        target: (*target).to_owned(),
    })
}

#[cfg(test)]
#[path = "dockerfile_tests.rs"]
mod tests;
