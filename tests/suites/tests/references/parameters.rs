//! Parameters of a `StorageClass`.

use std::collections::HashMap;

use pve_model::params::{Documented, ParameterError, Parameters, documented};

use crate::{golden, head, row};

const INTRODUCTION: &str = "\
`parameters` of a `StorageClass` whose provisioner is the driver. An unknown key, or a value outside of its grammar, is refused when a
volume is made (`INVALID_ARGUMENT`), and the answer says what was wrong. Keys that begin with `csi.storage.k8s.io/` are those of Kubernetes'
own components. What the operator's [policy](config.md) forbids is refused, whatever stands here.

";

#[test]
fn the_reference_of_parameters_is_that_of_the_parser() {
    let mut text = head("StorageClass parameters", "the parser of the driver") + INTRODUCTION;
    text += "| parameter | value | without it | meaning |\n|---|---|---|---|\n";
    for Documented {
        key,
        grammar,
        absent,
        meaning,
    } in documented()
    {
        text += &row(&[&format!("`{key}`"), grammar, absent, meaning]);
    }
    golden("parameters.md", &text);
}

/// The words of the reference are those of the refusal.
#[test]
fn a_value_outside_of_its_grammar_is_refused_in_the_words_of_the_reference() {
    let given = |key: &str, value: &str| {
        let storage = ("storage".to_owned(), "local".to_owned());
        let pair = (key.to_owned(), value.to_owned());
        Parameters::strict(&HashMap::from([storage, pair]))
    };
    for documented in documented() {
        match given(documented.key, "\0") {
            Err(ParameterError::Invalid { key, expected }) => {
                assert_eq!((key, expected), (documented.key, documented.grammar));
            }
            Err(ParameterError::Replication(key)) => {
                assert_eq!(
                    (key, documented.grammar),
                    (documented.key, "empty or false")
                );
                assert!(given(key, "false").is_ok(), "{key}");
            }
            other => panic!("{documented:?}: {other:?}"),
        }
    }
}
