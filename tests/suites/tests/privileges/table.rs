//! The rights that each endpoint states, against a server that knows nothing of them.

use harness::probes::{Lack, Probes, Right, Seen, Spec, endpoints, rights};
use harness::world::FILES;

use crate::{documented, grant, paths, world};

fn expected(spec: &Spec, less: &str) -> Option<Right> {
    rights(spec).find(|right| right.privilege == less).copied()
}

/// Whether what was seen without a privilege is what the endpoint's rights say.
fn agrees(spec: &Spec, less: &str, seen: &Seen) -> bool {
    match (expected(spec, less), seen) {
        (None, Seen::All) => true,
        (Some(right), Seen::Without(missing)) => {
            right.lack == Lack::LeftOut && missing.contains(&less)
        }
        (Some(right), Seen::Refused(path, privilege)) => {
            let kind = right.on.path().split('{').next().unwrap();
            // What opens a volume is one privilege on its storage or two others, of which PVE names the first that lacks.
            let volume = less == "Datastore.Allocate" && privilege == "VM.Config.Disk";
            let named = path.starts_with(kind) && privilege.split('|').any(|named| named == less);
            right.lack == Lack::Refused && (named || volume)
        }
        (None, Seen::Without(_) | Seen::Refused(..)) | (Some(_), Seen::All) => false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_is_refused_or_shortened_without_each_of_its_rights_and_without_no_other() {
    let world = world().await;
    let probes = Probes::new(&world.sim, 104).await.unwrap();
    let state = world.sim.state();
    let mut wrong = Vec::new();
    for spec in endpoints() {
        let seen = probes.ask(spec).await.unwrap();
        if seen != Seen::All {
            wrong.push(format!("{} with all privileges: {seen:?}", spec.name));
        }
        world.sim.edit(|now| *now = state.clone());
    }
    let asked = paths()
        .into_iter()
        .filter(|path| path.starts_with("/pool/") || path.ends_with(FILES));
    for path in asked {
        for less in documented(&path) {
            for spec in endpoints() {
                grant(&world.sim, Some((&path, &less)));
                let seen = probes.ask(spec).await.unwrap();
                if !agrees(spec, &less, &seen) {
                    let stated = expected(spec, &less);
                    wrong.push(format!(
                        "{} without {less} on {path}: {seen:?}, stated {stated:?}",
                        spec.name
                    ));
                }
                world.sim.edit(|now| *now = state.clone());
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
