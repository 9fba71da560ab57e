//! Our interface files say what the Go modules that define the interfaces say: names, numbers, types, options.

use anyhow::{Context, Result, ensure};
use harness::requirements::{peer, skipped};
use prost_reflect::text_format::FormatOptions;
use prost_reflect::{DescriptorPool, DynamicMessage};

/// The file of `package` in a serialized `FileDescriptorSet`, without where and how it was written down.
fn file_of(pool: &DescriptorPool, set: &[u8], package: &str) -> Result<DynamicMessage> {
    let descriptor = pool
        .get_message_by_name("google.protobuf.FileDescriptorSet")
        .context("no descriptor of descriptors")?;
    let set = DynamicMessage::decode(descriptor, set)?;
    let files = set.get_field_by_name("file").context("no files")?;
    let of_package = |file: &&DynamicMessage| {
        let name = file.get_field_by_name("package");
        name.is_some_and(|name| name.as_str() == Some(package))
    };
    let mut messages = files
        .as_list()
        .context("no list")?
        .iter()
        .filter_map(|file| file.as_message());
    let mut file = messages
        .find(of_package)
        .context("no such package")?
        .clone();
    for unimportant in ["name", "source_code_info"] {
        file.clear_field_by_name(unimportant);
    }
    Ok(file)
}

fn ours(file: &str) -> Result<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto");
    let mut compiler = protox::Compiler::new([folder])?;
    compiler
        .include_imports(true)
        .include_source_info(false)
        .open_file(file)?;
    Ok(compiler.encode_file_descriptor_set())
}

/// A method with an empty `{}` has the same options as one that ends in `;`.
fn lines(file: &DynamicMessage) -> Vec<String> {
    let text = file.to_text_format_with_options(&FormatOptions::new().pretty(true));
    let said = |line: &&str| !line.is_empty() && *line != "options {}";
    text.lines()
        .map(str::trim)
        .filter(said)
        .map(str::to_owned)
        .collect()
}

#[expect(clippy::disallowed_methods, reason = "the peer is a program")]
fn compare(test: &str, argument: &str, file: &str, package: &str) -> Result<()> {
    let program = match peer("descriptors", "descriptors") {
        Ok(program) => program,
        Err(reason) => {
            skipped(test, &reason);
            return Ok(());
        }
    };
    let output = std::process::Command::new(program).arg(argument).output()?;
    ensure!(
        output.status.success(),
        "the peer ended with {}",
        output.status
    );
    let ours = ours(file)?;
    let pool = match package {
        "csi.v1" => DescriptorPool::decode(ours.as_slice())?,
        _ => DescriptorPool::global(),
    };
    let theirs = lines(&file_of(&pool, &output.stdout, package)?);
    let ours = lines(&file_of(&pool, &ours, package)?);
    ensure!(ours.len() > 20, "nothing was compared");
    for (number, (our, their)) in ours.iter().zip(&theirs).enumerate() {
        let context = ours.get(number.saturating_sub(8)..number);
        ensure!(
            our == their,
            "line {number}: ours {our:?}, theirs {their:?}, after {context:#?}"
        );
    }
    ensure!(
        ours.len() == theirs.len(),
        "{} lines and {}",
        ours.len(),
        theirs.len()
    );
    Ok(())
}

#[test]
fn csi_is_that_of_the_go_module() -> Result<()> {
    compare("csi_is_that_of_the_go_module", "csi", "csi.proto", "csi.v1")
}

#[test]
fn plugin_registration_is_that_of_the_kubelets_go_module() -> Result<()> {
    let name = "plugin_registration_is_that_of_the_kubelets_go_module";
    compare(
        name,
        "registration",
        "pluginregistration.proto",
        "pluginregistration",
    )
}
