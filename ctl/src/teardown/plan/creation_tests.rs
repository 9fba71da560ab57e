use super::tests::{DRIVER, claim, class, ending, of, plan, rules, volume};
use super::*;

#[test]
fn a_claim_without_a_volume_may_have_one_in_creation() {
    let seen = Seen {
        classes: of(&[class("ours", DRIVER)]),
        claims: of(&[claim("x", "ours", ""), claim("y", "ours", "pv1")]),
        volumes: of(&[volume("pv1", DRIVER, "Delete", Some("y"))]),
        ..Seen::default()
    };
    let plan = plan(&seen, &Memory::default());
    let bare: Vec<bool> = plan.claims.iter().map(|step| step.bare).collect();
    assert_eq!(bare, [true, false]);
    assert!(plan.open);
    let only = |claim| Seen {
        classes: of(&[class("ours", DRIVER)]),
        claims: of(&[claim]),
        volumes: of(&[volume("pv1", DRIVER, "Delete", Some("y"))]),
        ..Seen::default()
    };
    let open = |claim| Plan::of(&only(claim), &Memory::default(), rules()).open;
    assert!(open(ending(claim("x", "ours", ""))), "ending");
    assert!(!open(claim("y", "ours", "pv1")), "with a volume");
}
