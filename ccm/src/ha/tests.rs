use super::*;
use proptest::prelude::*;

const PREFERRED: HaRuleKind = HaRuleKind::NodeAffinity {
    negative: false,
    strict: false,
};
const STRICT: HaRuleKind = HaRuleKind::NodeAffinity {
    negative: false,
    strict: true,
};
const TOGETHER: HaRuleKind = HaRuleKind::ResourceAffinity { positive: true };
const APART: HaRuleKind = HaRuleKind::ResourceAffinity { positive: false };

fn vm(number: u32) -> VmId {
    number.try_into().unwrap()
}

fn rule(name: &str, kind: HaRuleKind, vms: &[u32]) -> HaRule {
    HaRule {
        rule: name.to_owned(),
        kind,
        vms: vms.iter().map(|number| vm(*number)).collect(),
        enabled: true,
        feasible: true,
    }
}

/// The labels without the part that all have in common.
fn labels(view: &HaView, number: u32) -> Vec<String> {
    let labels = view.labels(vm(number));
    assert!(labels.values().all(String::is_empty));
    let short = |label: &String| label.replace("group.topology.proxmox.sinextra.dev", "group");
    labels.keys().map(short).collect()
}

#[test]
fn a_vm_gets_the_rules_that_name_it_and_the_strict_ones_twice() {
    let view = HaView::from_rules(&[
        rule("zone-a", PREFERRED, &[100, 101]),
        rule("zone-b", STRICT, &[102]),
    ]);
    assert_eq!(labels(&view, 100), ["group/zone-a"]);
    assert_eq!(labels(&view, 101), ["group/zone-a"]);
    assert_eq!(labels(&view, 102), ["group/zone-b", "strict.group/zone-b"]);
    assert_eq!(labels(&view, 103), [""; 0]);
    assert_eq!(view.unfit().count(), 0);
}

#[test]
fn a_rule_that_is_not_obeyed_or_says_where_not_to_run_gives_no_label() {
    let negative = HaRuleKind::NodeAffinity {
        negative: true,
        strict: true,
    };
    let disabled = HaRule {
        enabled: false,
        ..rule("off", STRICT, &[100])
    };
    let infeasible = HaRule {
        feasible: false,
        ..rule("bad", STRICT, &[100])
    };
    let view = HaView::from_rules(&[
        disabled,
        infeasible,
        rule("away", negative, &[100]),
        rule("apart", APART, &[100]),
        rule("together", TOGETHER, &[100]),
        rule("future", HaRuleKind::Other, &[100]),
    ]);
    assert_eq!(view, HaView::default());
}

#[test]
fn what_keeps_vms_together_spreads_the_rule_of_one_to_all() {
    let rules = [
        rule("a", STRICT, &[100]),
        rule("pair", TOGETHER, &[100, 101]),
        rule("far", TOGETHER, &[103, 104]),
        rule("bridge", TOGETHER, &[101, 102, 103]),
        rule("other", TOGETHER, &[200, 201]),
        rule("b", PREFERRED, &[201]),
    ];
    let view = HaView::from_rules(&rules);
    for number in 100..=104 {
        assert_eq!(
            labels(&view, number),
            ["group/a", "strict.group/a"],
            "{number}"
        );
    }
    assert_eq!(labels(&view, 200), ["group/b"]);
    let mut reversed = rules;
    reversed.reverse();
    assert_eq!(HaView::from_rules(&reversed), view);
}

#[test]
fn vms_that_are_kept_apart_or_together_in_vain_share_nothing() {
    let disabled = HaRule {
        enabled: false,
        ..rule("off", TOGETHER, &[100, 102])
    };
    let infeasible = HaRule {
        feasible: false,
        ..rule("bad", TOGETHER, &[100, 103])
    };
    let apart = rule("apart", APART, &[100, 101]);
    let view = HaView::from_rules(&[rule("a", PREFERRED, &[100]), apart, disabled, infeasible]);
    assert_eq!(labels(&view, 100), ["group/a"]);
    for number in 101..=103 {
        assert_eq!(labels(&view, number), [""; 0], "{number}");
    }
}

#[test]
fn a_migrated_group_keeps_the_name_that_it_had() {
    let before = HaView::from_groups(
        &[HaGroup {
            group: "zone-a".to_owned(),
            restricted: true,
        }],
        &[HaResource {
            vm: Some(vm(100)),
            group: Some("zone-a".to_owned()),
        }],
    );
    let after = HaView::from_rules(&[rule("ha-group-zone-a", STRICT, &[100])]);
    assert_eq!(before, after);
    assert_eq!(labels(&after, 100), ["group/zone-a", "strict.group/zone-a"]);
}

#[test]
fn a_group_binds_its_own_resources_only() {
    let group = |name: &str, restricted| HaGroup {
        group: name.to_owned(),
        restricted,
    };
    let resource = |number: Option<u32>, group: Option<&str>| HaResource {
        vm: number.map(vm),
        group: group.map(ToOwned::to_owned),
    };
    let view = HaView::from_groups(
        &[
            group("a", false),
            group("b", true),
            group("nobody's", false),
        ],
        &[
            resource(Some(100), Some("a")),
            resource(Some(101), Some("b")),
            resource(Some(102), None),
            resource(Some(103), Some("unlisted")),
            resource(None, Some("a")),
        ],
    );
    assert_eq!(labels(&view, 100), ["group/a"]);
    assert_eq!(labels(&view, 101), ["group/b", "strict.group/b"]);
    assert_eq!(labels(&view, 102), [""; 0]);
    assert_eq!(labels(&view, 103), [""; 0]);
    assert_eq!(view.unfit().count(), 0);
}

#[test]
fn a_name_that_no_label_can_have_is_left_out_and_counted() {
    let long = "a".repeat(64);
    let migrated = format!("ha-group-{}", "b".repeat(63));
    let view = HaView::from_rules(&[
        rule(&long, STRICT, &[100, 101]),
        rule("ends-with-", STRICT, &[100]),
        rule("ha-group-", PREFERRED, &[100]),
        rule("binds-nothing-", STRICT, &[]),
        rule(&migrated, PREFERRED, &[100]),
    ]);
    assert_eq!(view.unfit().count(), 3);
    assert_eq!(labels(&view, 100), [format!("group/{}", "b".repeat(63))]);
    assert_eq!(labels(&view, 101), [""; 0]);
}

#[test]
fn of_two_rules_with_one_label_the_strict_one_counts() {
    let both = [
        rule("ha-group-a", STRICT, &[100]),
        rule("a", PREFERRED, &[100, 101]),
    ];
    let view = HaView::from_rules(&both);
    assert_eq!(labels(&view, 100), ["group/a", "strict.group/a"]);
    assert_eq!(labels(&view, 101), ["group/a"]);
}

fn any_rule() -> impl Strategy<Value = HaRule> {
    let kinds = prop_oneof![Just(PREFERRED), Just(STRICT), Just(TOGETHER), Just(APART)];
    let vms = proptest::collection::btree_set(100_u32..112, 0..4);
    (0..4_u8, kinds, vms, any::<bool>()).prop_map(|(name, kind, vms, enabled)| HaRule {
        enabled,
        ..rule(&format!("r{name}"), kind, &Vec::from_iter(vms))
    })
}

proptest! {
    #[test]
    fn vms_that_are_kept_together_have_the_same_labels(rules in proptest::collection::vec(any_rule(), 0..8)) {
        let view = HaView::from_rules(&rules);
        for together in rules.iter().filter(|rule| rule.enabled && rule.kind == TOGETHER) {
            let all: BTreeSet<_> = together.vms.iter().map(|vm| view.labels(*vm)).collect();
            prop_assert!(all.len() <= 1);
        }
        for named in rules.iter().filter(|rule| rule.enabled && rule.kind == STRICT) {
            let label = format!("{HA_STRICT_PREFIX}{}", named.rule);
            prop_assert!(named.vms.iter().all(|vm| view.labels(*vm).contains_key(&label)));
        }
    }
}
