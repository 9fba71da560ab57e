use super::*;

const TEXT: &str = r#"# a comment
FROM --platform=$BUILDPLATFORM rust:1 AS build
RUN anything at all
FROM scratch AS static
ARG VERSION
LABEL a="one two" \
      v="v${VERSION}"
COPY --from=build /certificates /etc/ssl/certificates
USER 65532:65532
FROM static AS thing
LABEL t="thing"
COPY --from=build /out/thing /thing
ENTRYPOINT ["/thing"]
"#;

fn read(text: &str) -> Result<Vec<Image>> {
    images(text, &BTreeMap::from([("VERSION", "1.2".to_owned())]))
}

fn refusal(line: &str) -> String {
    let text = format!("FROM scratch AS x\n{line}\nENTRYPOINT [\"/x\"]\n");
    format!("{:#}", read(&text).unwrap_err())
}

#[test]
fn a_stage_has_what_the_stages_below_it_have() {
    let copy = |source: &str, target: &str| Copy {
        built: true,
        source: source.to_owned(),
        target: target.to_owned(),
    };
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let image = Image {
        name: "thing".to_owned(),
        base: Base::Scratch,
        copies: vec![
            copy("/certificates", "/etc/ssl/certificates"),
            copy("/out/thing", "/thing"),
        ],
        labels: [pair("a", "one two"), pair("v", "v1.2"), pair("t", "thing")].into(),
        user: "65532:65532".to_owned(),
        entry_point: vec!["/thing".to_owned()],
    };
    assert_eq!(read(TEXT).unwrap(), [image]);
}

#[test]
fn debian_gets_packages_only_by_the_one_run_that_is_known() {
    let text = format!("FROM debian:trixie-slim AS n\nRUN {INSTALL}\nENTRYPOINT [\"/n\"]\n");
    let debian = |packages| Base::Debian {
        suite: "trixie".to_owned(),
        packages,
    };
    assert_eq!(read(&text).unwrap()[0].base, debian(true));
    let without = text.replace(&format!("RUN {INSTALL}\n"), "");
    assert_eq!(read(&without).unwrap()[0].base, debian(false));
    let other = text.replace("xargs", "cat");
    assert!(read(&other).is_err());
    assert!(refusal(&format!("RUN {INSTALL}")).contains("only the RUN"));
}

#[test]
fn what_would_be_built_otherwise_than_by_an_engine_is_refused() {
    for (line, why) in [
        ("ENV A=b", "not understood"),
        ("WORKDIR /x", "not understood"),
        ("ADD a /b", "not understood"),
        ("ARG OTHER", "no such argument"),
        ("LABEL a=b", "a label is"),
        ("LABEL a=\"b", "not closed"),
        ("LABEL a=\"${OTHER}\"", "not known"),
        ("COPY a b", "absolute path"),
        ("COPY a /b/", "absolute path"),
        ("COPY --chmod=755 a /b", "COPY of one file"),
        ("COPY --from=other /a /b", "COPY of one file"),
        ("COPY a b /c", "COPY of one file"),
        ("ENTRYPOINT /x", "JSON form"),
        ("FROM alpine AS y", "neither scratch"),
        ("FROM scratch", "FROM … AS"),
    ] {
        let error = refusal(line);
        assert!(error.contains(why), "{line}: {error}");
    }
    assert!(read("FROM scratch AS x\n").is_err(), "no image at all");
    assert!(read("USER 1\nFROM scratch AS x\nENTRYPOINT [\"/x\"]\n").is_err());
}
