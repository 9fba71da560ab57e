//! A tenant that is no more.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_counts_as_gone_only_once_its_pool_is_empty_and_its_vms_are_proved_gone() {
    let desk = Desk::with_orphan().await;
    let sim = &desk.world.sim;
    let gone = format!("--tenant-gone --vm 101 --vm 102:{}", uuid(102));
    assert_eq!(desk.run_as("--tenant-gone").await.code, 2);
    let said = desk.run_as(&format!("{gone} --control 100")).await;
    said.refused("guest 101 is in the pool tenant-a");
    sim.edit(|state| state.vms.remove(&101));
    // One was taken out of the pool and is out of sight.
    sim.edit(|state| state.pools.get_mut(POOL).unwrap().vms.clear());
    desk.run_as(&gone).await.refused("no guest is to be seen");
    desk.run_as(&format!("{gone} --control 100"))
        .await
        .refused("VMID 102 and can't be seen");
    sim.edit(|state| state.vms.remove(&102));
    desk.run_as(&format!("{gone} --control 300"))
        .await
        .refused("is not proved gone");
    let role = |privileges: &[&str]| {
        let privileges = privileges.iter().map(|name| (*name).to_owned()).collect();
        sim.edit(|state| state.roles.insert("TenantPool".to_owned(), privileges))
            .unwrap()
    };
    role(&["VM.Audit"]);
    desk.run_as(&format!("{gone} --control 100"))
        .await
        .refused("an empty pool says nothing");
    role(&["VM.Audit", "Pool.Audit", "VM.Config.Disk"]);
    let gone = format!("{gone} --control 100");
    let said = desk.run_as(&format!("{gone} -o json")).await;
    assert_eq!(said.code, 0, "{said:?}");
    let used = "r1/pve1/files/9999/vm-9999-pvc-used.raw";
    assert_eq!(
        names(&said.json()["disksWithoutVolume"], "handle"),
        [used, LONE]
    );
    let said = desk
        .run_as(&format!("{gone} {} --id {used}", desk.delete(LONE)))
        .await;
    assert_eq!(said.code, 0, "{said:?}");
    assert!(sim.state().volumes.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_operators_rights_a_vmid_that_someone_else_has_now_is_no_obstacle() {
    let desk = Desk::new(two()).await;
    desk.disk(LONE, DAY);
    let sim = &desk.world.sim;
    sim.edit(|state| {
        let vm = state.vms.remove(&101).unwrap();
        state.vms.clear();
        state.vms.insert(101, vm);
        state.pools.get_mut(POOL).unwrap().vms.clear();
    });
    let token = desk.token();
    let gone = |vm: String| {
        format!(
            "--tenant-gone --vm {vm} --admin-token-file {}",
            token.display()
        )
    };
    desk.run_as(&gone("101".to_owned()))
        .await
        .refused("say --vm 101:<UUID>");
    desk.run_as(&gone(format!("101:{}", uuid(101))))
        .await
        .refused("is there still");
    let said = desk.run_as(&gone(format!("101:{}", uuid(555)))).await;
    assert!(said.code == 0 && said.out.contains(LONE), "{said:?}");
    assert!(!format!("{said:?}").contains("5555-"), "{said:?}");
}
