//! Forged node ids, and the Nodes of a tenant's API server that claim to be another's VM.

use harness::kube_stub::KubeStub;
use harness::two_tenants::{
    OWNER_ON_PVE2, TEMPLATE, TWINS, WITH_ROOT_DISK, WORKER, WORKER_ON_PVE2, bravo,
};
use harness::world::{OWNER, node_id, uuid};

use crate::Due::{Harmless, Refused};
use crate::handles::mangled;
use crate::{Forgery, Part};

/// Writes Nodes that say of themselves what is not true.
pub(crate) fn claim(kube: &KubeStub) {
    let [first, second] = bravo::VMS;
    let vmid = first.to_string();
    let annotation = [("proxmox.sinextra.dev/instance-id", vmid.as_str())];
    kube.set_node("claims-bravo", &uuid(first), &[], &annotation);
    kube.set_provider_id("claims-bravo", &format!("proxmox://{}", uuid(first)));
    kube.set_node("claims-bravo-2", &uuid(second).to_uppercase(), &[], &[]);
    kube.set_provider_id(
        "claims-bravo-2",
        &format!("proxmox://bravo-region/{second}"),
    );
    kube.set_node("claims-twin", &uuid(TWINS[0]), &[], &[]);
    kube.set_node("claims-template", &uuid(TEMPLATE), &[], &[]);
    kube.set_node("claims-owner", &uuid(OWNER_ON_PVE2), &[], &[]);
    kube.set_node("claims-rubbish", "../../qemu/77201", &[], &annotation);
    kube.set_node("claims-nothing", "", &[], &annotation);
    kube.set_node("claims-itself", &uuid(WORKER), &[], &annotation);
    kube.set_provider_id("claims-itself", &format!("proxmox://{}", uuid(first)));
    // The name of the other tenant's Node, which here is the tenant's own to give.
    kube.set_node("bravo-worker-1", &uuid(first), &[], &annotation);
}

/// The other tenant's VMs, by every way to name them; and VMs of our own that are none of the tenant's workers.
fn refused() -> Vec<String> {
    let [first, second] = bravo::VMS;
    let mut all = Vec::new();
    for vmid in bravo::VMS {
        all.push(node_id(vmid));
        all.push(uuid(vmid));
        all.push(node_id(vmid).to_uppercase());
        all.push(format!("{}/{WORKER}", uuid(vmid)));
    }
    all.push(format!("{}/{second}", uuid(first)));
    for vmid in [TWINS[0], TEMPLATE, OWNER_ON_PVE2] {
        all.push(node_id(vmid));
        all.push(uuid(vmid));
        all.push(format!("{}/{WORKER}", uuid(vmid)));
        all.push(format!("{}/{first}", uuid(vmid)));
    }
    // The second twin has the UUID of the first.
    all.push(format!("{}/{}", uuid(TWINS[0]), TWINS[1]));
    let claims = [
        "claims-bravo",
        "claims-bravo-2",
        "claims-twin",
        "claims-template",
        "claims-owner",
        "claims-rubbish",
        "claims-nothing",
        "bravo-worker-1",
        "bravo-worker-2",
        "no-such-node",
    ];
    for name in claims {
        all.push(name.to_owned());
        all.push(format!("{name}/{first}"));
    }
    all
}

/// What no node id looks like.
fn malformed() -> Vec<String> {
    let own = uuid(WORKER);
    let numbers = [
        "",
        "0",
        "99",
        "0101",
        "+101",
        "-1",
        "101 ",
        "101/101",
        "0x65",
        "1e2",
        "101.0",
        "4294967397",
        "1000000000",
        "\u{ff11}\u{ff10}\u{ff11}",
        "77201,101",
        "77201\n",
        "..",
        "*",
    ];
    let mut all: Vec<String> = numbers.map(|number| format!("{own}/{number}")).to_vec();
    let names = [
        "/",
        "/101",
        "..",
        "../qemu/77201",
        "pve1/qemu/77201/config",
        "Alpha-1",
        "alpha_1",
        "-alpha",
        "alpha-",
        "alpha..1",
        "proxmox://00000000-0000-4000-a000-000000077201",
        "uuid=00000000-0000-4000-a000-000000077201",
        "{}",
        "*",
        "00000000-0000-4000-a000-00000007720\u{ff11}",
        "\u{430}lpha-1",
    ];
    all.extend(names.map(str::to_owned));
    all.push("a".repeat(64));
    all.push("a.".repeat(2000));
    all.push(format!("{own}/{}", "9".repeat(5000)));
    all
}

/// A wrong hint beside the right identity, an identity that nobody has, and a former id that leads to the right VM.
fn harmless() -> Vec<String> {
    let [first, _] = bravo::VMS;
    let nobody = "abcdef00-1111-2222-3333-444455556666";
    vec![
        format!("{}/{first}", uuid(WORKER)),
        format!("{}/{WORKER_ON_PVE2}", uuid(WORKER)),
        format!("{}/{OWNER}", uuid(WORKER)),
        format!("{}/{TEMPLATE}", uuid(WORKER)),
        node_id(WORKER).to_uppercase(),
        node_id(WITH_ROOT_DISK),
        node_id(WORKER_ON_PVE2),
        nobody.to_owned(),
        // Nobody has the second twin's own UUID.
        node_id(TWINS[1]),
        format!("{}/{first}", uuid(TWINS[1])),
        // A VMID that is free is the proof that a VM has gone, if it was that VM's.
        format!("{}/{OWNER}", uuid(first)),
        format!("{nobody}/{first}"),
        format!("{nobody}/{OWNER}"),
        format!("{nobody}/{WORKER}"),
        "claims-itself".to_owned(),
        format!("claims-itself/{first}"),
        "00000000-0000-0000-0000-000000000000".to_owned(),
        "ffffffff-ffff-ffff-ffff-ffffffffffff/101".to_owned(),
    ]
}

/// Every forged node id.
pub(crate) fn forgeries() -> Vec<Forgery> {
    let bad = refused()
        .into_iter()
        .chain(malformed())
        .chain(mangled(&node_id(WORKER)));
    let bad = bad.map(|text| Forgery::new(Part::Node(text), Refused));
    let good = harmless().into_iter();
    bad.chain(good.map(|text| Forgery::new(Part::Node(text), Harmless)))
        .collect()
}
