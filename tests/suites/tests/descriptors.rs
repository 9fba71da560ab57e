//! Our interface files say what the Go modules that define the interfaces say: names, numbers, types, options.

use harness::requirements::{peer, skipped};
use prost_reflect::{DescriptorPool, DynamicMessage, Value};

/// The file of `package` in a serialized `FileDescriptorSet`, without where and how it was written down.
fn file_of(pool: &DescriptorPool, set: &[u8], package: &str) -> DynamicMessage {
    let descriptor = pool.get_message_by_name("google.protobuf.FileDescriptorSet").unwrap();
    let set = DynamicMessage::decode(descriptor, set).unwrap();
    let files = set.get_field_by_name("file").unwrap().into_owned();
    let Value::List(files) = files else { panic!("no list of files") };
    let of_package = |file: &&Value| {
        file.as_message().unwrap().get_field_by_name("package").unwrap().as_str() == Some(package)
    };
    let mut file = files.iter().find(of_package).unwrap().as_message().unwrap().clone();
    for unimportant in ["name", "source_code_info"] {
        file.clear_field_by_name(unimportant);
    }
    file
}

fn ours(file: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto");
    let mut compiler = protox::Compiler::new([folder]).unwrap();
    compiler.include_imports(true).include_source_info(false).open_file(file).unwrap();
    compiler.encode_file_descriptor_set()
}

/// A method with an empty `{}` has the same options as one that ends in `;`.
fn lines(file: &DynamicMessage) -> Vec<String> {
    let text = file.to_text_format_with_options(&prost_reflect::text_format::FormatOptions::new().pretty(true));
    text.replace("options {\n    }\n", "").lines().map(|line| line.trim().to_owned()).filter(|l| !l.is_empty()).collect()
}

#[expect(clippy::disallowed_methods, reason = "the peer is a program")]
fn compare(test: &str, argument: &str, file: &str, package: &str) {
    let program = match peer("descriptors", "descriptors") {
        Ok(program) => program,
        Err(reason) => return skipped(test, &reason),
    };
    let output = std::process::Command::new(program).arg(argument).output().unwrap();
    assert!(output.status.success());
    let ours = ours(file);
    let pool = if package == "csi.v1" {
        DescriptorPool::decode(ours.as_slice()).unwrap()
    } else {
        DescriptorPool::global()
    };
    let theirs = lines(&file_of(&pool, &output.stdout, package));
    let ours = lines(&file_of(&pool, &ours, package));
    assert!(ours.len() > 20, "nothing was compared");
    for (number, (our, their)) in ours.iter().zip(&theirs).enumerate() {
        let context = ours.get(number.saturating_sub(8)..number);
        assert_eq!(our, their, "line {number}, after {context:#?}");
    }
    assert_eq!(ours.len(), theirs.len());
}

#[test]
fn csi_is_that_of_the_go_module() {
    compare("csi_is_that_of_the_go_module", "csi", "csi.proto", "csi.v1");
}

#[test]
fn plugin_registration_is_that_of_the_kubelets_go_module() {
    let name = "plugin_registration_is_that_of_the_kubelets_go_module";
    compare(name, "registration", "pluginregistration.proto", "pluginregistration");
}
