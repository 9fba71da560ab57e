//! Every RPC × every forgery, with both tokens.

use std::collections::BTreeSet;

use harness::requirements::noted;
use harness::two_tenants::{BOTH, OWN, Power, TwoTenants, WORKER};

use crate::calls::{self, Call, Volumes};
use crate::judge::Judge;
use crate::{Due, Forgery, Part, fields, handles, nodes};

const NONE: [String; 0] = [];
const TO_BRAVO: &str = "77201, claims-bravo";

/// Both tenants, and the first with a volume at its worker and one that is attached nowhere.
pub(crate) async fn world(power: Power) -> (TwoTenants, Volumes) {
    let tenants = TwoTenants::start(power).await.unwrap();
    nodes::claim(&tenants.kube);
    let caller = tenants.caller();
    let kept = caller
        .create(fields::KEPT, OWN, Some("pve1"))
        .await
        .unwrap();
    let spare = caller.create("spare", BOTH, None).await.unwrap();
    caller.publish(&kept, WORKER).await.unwrap();
    (tenants, Volumes { kept, spare })
}

fn due(call: &Call, forgery: &Forgery) -> Due {
    match (call, &forgery.part) {
        (Call::Publish(_), Part::Entry(..)) => forgery.due_in_context,
        _ => forgery.due,
    }
}

async fn run(power: Power) {
    let (tenants, volumes) = world(power).await;
    let mut judge = Judge::new(&tenants).await;
    let handles = handles::forgeries(&[&volumes.kept, &volumes.spare]);
    let forgeries = [handles, nodes::forgeries(), fields::forgeries()].concat();
    for call in calls::honest(&tenants.csi(), &volumes).await {
        for forgery in &forgeries {
            if let Some(forged) = call.forged(&forgery.part) {
                let said = format!("{:?}", forgery.part);
                judge.case(&forged, &said, due(&call, forgery)).await;
            }
        }
    }
    let plain = handles::plain();
    for call in calls::to_bravo(&volumes) {
        judge.case(&call, TO_BRAVO, Due::Refused).await;
        for forgery in &plain {
            if let Some(forged) = call.forged(&forgery.part) {
                let said = format!("{TO_BRAVO} {:?}", forgery.part);
                judge.case(&forged, &said, forgery.due).await;
            }
        }
    }
    let (cases, refused) = (judge.cases, judge.refused);
    let failures = judge.failures;
    let few: Vec<&String> = failures.iter().take(12).collect();
    assert!(
        failures.is_empty(),
        "{} of {cases} went wrong:\n{few:#?}",
        failures.len()
    );
    noted(&format!(
        "forgeries: {cases} cases with {power:?} privileges, {refused} refused"
    ));
    assert_eq!(tenants.world.leaks().unwrap(), NONE);
    all_kinds_are_counted(&tenants, power).await;
    assert!(
        cases > 4000 && refused > 3500,
        "{cases} cases, {refused} refused"
    );
}

async fn all_kinds_are_counted(tenants: &TwoTenants, power: Power) {
    let kinds: BTreeSet<String> = tenants
        .refusals()
        .await
        .unwrap()
        .into_iter()
        .map(|(why, _)| why)
        .collect();
    let everywhere = [
        "request",
        "foreign_region",
        "foreign_storage",
        "foreign_host",
        "foreign_owner",
        "vm_template",
        "vm_owner",
        "vm_duplicate",
    ];
    // With the least privileges the other tenant's VMs are not there at all.
    let seen = (power == Power::Root).then_some("vm_pool");
    for kind in everywhere.into_iter().chain(seen) {
        assert!(
            kinds.contains(kind),
            "no refusal was counted as {kind}: {kinds:?}"
        );
    }
}

/// B07, B37, B74.
#[tokio::test(flavor = "multi_thread")]
async fn no_forgery_reaches_what_is_not_the_tenants_with_a_token_of_least_privilege() {
    run(Power::Least).await;
}

/// The policy holds without PVE's help.
#[tokio::test(flavor = "multi_thread")]
async fn no_forgery_reaches_what_is_not_the_tenants_with_a_token_that_may_do_everything() {
    run(Power::Root).await;
}
