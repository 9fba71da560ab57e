use super::*;

pub(crate) fn tenant(namespace: &str, release: &str) -> Tenant {
    Tenant {
        namespace: namespace.to_owned(),
        release: release.to_owned(),
    }
}

pub(crate) fn plan() -> Plan {
    let tenant = tenant("tenants", "blue");
    Plan {
        region: "r1".parse().unwrap(),
        endpoints: vec![EndpointConfig {
            url: "https://pve1:8006".to_owned(),
            trust: pve_runtime::config::Trust::Fingerprint([0xab; 32]),
        }],
        pool: "blue".parse().unwrap(),
        storages: ["fast", "big"].map(|id| id.parse().unwrap()).into(),
        pve_nodes: ["pve1", "pve2"].map(|id| id.parse().unwrap()).into(),
        owner: tenant.derived_owner().unwrap(),
        provider: Provider::Capmox,
        user: tenant.default_user(),
        tokens: Tokens {
            csi: "csi".to_owned(),
            ccm: "ccm".to_owned(),
        },
        role_prefix: String::new(),
        optional: Optional::default(),
        tenant,
    }
}

#[test]
fn the_owner_follows_from_namespace_and_release_and_lies_above_what_pve_gives_to_guests() {
    let mut seen = BTreeSet::new();
    for namespace in 0..50 {
        for release in ["a", "b"] {
            let tenant = tenant(&format!("n{namespace}"), release);
            let owner = tenant.derived_owner().unwrap();
            assert_eq!(owner, tenant.derived_owner().unwrap());
            assert!(
                (LOWEST_OWNER..=HIGHEST_OWNER).contains(&owner.get()),
                "{owner}"
            );
            seen.insert(owner);
        }
    }
    assert_eq!(seen.len(), 100);
    // Disks carry the number: it must not change with a version of this program.
    assert_eq!(
        tenant("tenants", "blue")
            .derived_owner()
            .unwrap()
            .to_string(),
        "143339848"
    );
    assert_ne!(
        tenant("a", "bc").derived_owner().unwrap(),
        tenant("ab", "c").derived_owner().unwrap()
    );
}

#[test]
fn each_tenant_has_a_user_of_its_own_within_the_length_that_pve_takes() {
    assert_eq!(
        tenant("tenants", "blue").default_user(),
        "pve-cloud-tenants.blue@pve"
    );
    let (one, other) = ("a".repeat(63), "b".repeat(63));
    let long =
        [tenant(&one, "c"), tenant(&other, "c"), tenant(&one, "d")].map(|t| t.default_user());
    assert!(long.iter().all(|user| user.len() <= USER_MAX), "{long:?}");
    assert_eq!(BTreeSet::from(long).len(), 3);
}

#[test]
fn what_a_token_says_of_itself_is_read_again_and_nothing_else_is() {
    for handed_over in [true, false] {
        let mark = plan().mark(handed_over);
        assert_eq!(Mark::read(&mark.to_string()), Some(mark));
    }
    for other in [
        "",
        "pve-cloud a/b",
        "pve-cloud a/b owner=7",
        "mine owner=100",
        "pve-cloud a/b owner=100 x",
    ] {
        assert_eq!(Mark::read(other), None, "{other}");
    }
}

fn told(plan: &Plan, major: u32) -> Vec<String> {
    let told = |role: &Role| {
        let privileges: Vec<&str> = role.privileges.iter().map(String::as_str).collect();
        let (paths, below) = (role.paths.join(" "), role.propagate);
        format!(
            "{}: {} on {paths}, below {below}",
            role.name,
            privileges.join(" ")
        )
    };
    plan.roles(major).iter().map(told).collect()
}

#[test]
fn the_roles_are_those_of_the_reference_with_what_is_optional_only_if_it_is_asked_for() {
    let mut plan = plan();
    let least = [
        "CsiPool: Pool.Audit VM.Audit VM.Config.Disk on /pool/blue, below true",
        "CsiStorage: Datastore.Allocate Datastore.AllocateSpace Datastore.Audit on /storage/big /storage/fast, below true",
        "CcmPool: Pool.Audit VM.Audit on /pool/blue, below true",
    ];
    assert_eq!(told(&plan, 9), least);
    assert_eq!(told(&plan, 8), least);
    plan.optional = Optional {
        ha: true,
        agent: true,
    };
    plan.role_prefix = "X".to_owned();
    let more = |major| told(&plan, major)[3..].to_vec();
    let ha = "XCcmHa: Sys.Audit on /, below false";
    assert_eq!(
        more(9),
        [
            ha,
            "XCcmAgent: VM.GuestAgent.Audit on /pool/blue, below true"
        ]
    );
    assert_eq!(
        more(8),
        [ha, "XCcmAgent: VM.Monitor on /pool/blue, below true"]
    );
}
