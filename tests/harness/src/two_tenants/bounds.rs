//! What the first tenant's controller may ask of PVE, written down once more and independently of the driver.

use pve_sim::RequestEntry;

use super::{ADOPTED, BOTH, OWN, OWNER_ON_PVE2, TWINS, WITH_ROOT_DISK, WORKER, WORKER_ON_PVE2};
use crate::world::OWNER;

/// Why a request that can change something is not one of the first tenant: it names a VM, a storage, a disk or an option
/// that the tenant's config does not give it. Reads are none of these.
pub fn beyond_alpha(request: &RequestEntry) -> Option<String> {
    if request.method == "GET" {
        return None;
    }
    let path = request.path.replace("%3A", ":").replace("%2F", "/");
    let below = path.split_once("/nodes/").map_or("", |(_, rest)| rest);
    let allowed = match below.split('/').collect::<Vec<_>>().as_slice() {
        ["pve1" | "pve2", "qemu", vmid, "config"] => {
            own_vm(vmid) && request.params.iter().all(own_option)
        }
        ["pve1" | "pve2", "qemu", vmid, "resize"] => {
            own_vm(vmid)
                && request
                    .params
                    .get("disk")
                    .is_some_and(|disk| own_slot(disk))
        }
        ["pve1" | "pve2", "storage", OWN | BOTH, "content"] => {
            own_file(request.params.get("filename").map_or("", String::as_str))
        }
        [
            "pve1" | "pve2",
            "storage",
            OWN | BOTH,
            "content",
            volid @ ..,
        ] => own_volid(&volid.join("/")),
        _ => false,
    };
    (!allowed).then(|| format!("{} {path} {:?}", request.method, request.params))
}

fn own_vm(vmid: &str) -> bool {
    let vms = [WORKER, WORKER_ON_PVE2, WITH_ROOT_DISK, TWINS[0], TWINS[1]];
    vms.iter().any(|own| own.to_string() == vmid)
}

fn own_option((key, value): (&String, &String)) -> bool {
    const OPTIONS: [&str; 14] = [
        "aio",
        "backup",
        "cache",
        "discard",
        "iops_rd",
        "iops_wr",
        "iothread",
        "mbps_rd",
        "mbps_wr",
        "replicate",
        "ro",
        "size",
        "ssd",
        "wwn",
    ];
    match key.as_str() {
        "background_delay" | "digest" => return true,
        "delete" | "revert" => return value.split(',').all(own_slot),
        _ if !own_slot(key) => return false,
        _ => {}
    }
    let mut parts = value.split(',');
    let volid = parts.next().unwrap_or_default();
    let known = |part: &str| {
        part.split_once('=')
            .is_some_and(|(option, _)| OPTIONS.contains(&option))
    };
    own_volid(volid) && parts.all(known)
}

/// `scsi0` is the root disk.
fn own_slot(key: &str) -> bool {
    let number = key.strip_prefix("scsi").map(str::parse::<u8>);
    matches!(number, Some(Ok(1..=30)))
}

fn own_volid(volid: &str) -> bool {
    match volid.split_once(':') {
        Some((OWN, file)) => own_file(file),
        Some((BOTH, name)) => {
            let (folder, file) = name.split_once('/').unwrap_or_default();
            let adopted = ADOPTED.ends_with(&format!("//{BOTH}/{name}"));
            adopted || (own_file(file) && file.starts_with(&format!("vm-{folder}-")))
        }
        _ => false,
    }
}

/// `vm-<owner of ours>-<name>`, with a suffix or without.
fn own_file(file: &str) -> bool {
    let stem = file.trim_end_matches(".raw").trim_end_matches(".qcow2");
    [OWNER, OWNER_ON_PVE2].iter().any(|owner| {
        stem.strip_prefix(&format!("vm-{owner}-"))
            .is_some_and(|name| {
                !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, path: &str, params: &[(&str, &str)]) -> RequestEntry {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        RequestEntry {
            seq: 1,
            method: method.to_owned(),
            template: String::new(),
            path: format!("/api2/json/nodes/{path}"),
            caller: String::new(),
            status: 200,
            params: params.iter().map(owned).collect(),
            at_ms: 0,
        }
    }

    #[test]
    fn a_request_that_names_what_is_not_the_tenants_is_told_apart() {
        let wwn = "wwn=0x5c42a611aadbf50e";
        let disk = |volid: &str| format!("{volid},{wwn}");
        let own = disk("both:9999/vm-9999-a.raw");
        let foreign = disk("both:78888/vm-78888-bravo-spare.raw");
        let option = disk("both:9999/vm-9999-a.raw,import-from=x");
        #[rustfmt::skip]
        let rows = [
            ("GET", "pve1/qemu/77201/config", vec![], false),
            ("POST", "pve1/qemu/101/config", vec![("scsi1", own.as_str())], false),
            ("POST", "pve1/qemu/77201/config", vec![("delete", "scsi1")], true),
            ("POST", "pve1/qemu/101/config", vec![("scsi1", &foreign)], true),
            ("POST", "pve1/qemu/101/config", vec![("scsi1", &option)], true),
            ("POST", "pve1/qemu/101/config", vec![("memory", "1")], true),
            ("DELETE", "pve1/storage/both/content/both%3A9999%2Fvm-9999-a.raw", vec![], false),
            ("DELETE", "pve1/storage/both/content/both%3A9999%2Fvm-78888-a.raw", vec![], true),
            ("DELETE", "pve1/storage/both/content/both%3A78888%2Fvm-9999-a.raw", vec![], true),
            ("DELETE", "pve1/storage/alpha-thin/content/alpha-thin%3Avm-9999-a", vec![], false),
            ("DELETE", "pve1/storage/bravo-thin/content/alpha-thin%3Avm-9999-a", vec![], true),
            ("DELETE", "bravo-host/storage/both/content/both%3A9999%2Fvm-9999-a.raw", vec![], true),
            ("POST", "pve1/storage/both/content", vec![("filename", "vm-9999-a.raw")], false),
            ("POST", "pve1/storage/both/content", vec![("filename", "vm-78888-a.raw")], true),
        ];
        for (method, path, params, beyond) in rows {
            let found = beyond_alpha(&request(method, path, &params)).is_some();
            assert_eq!(found, beyond, "{method} {path} {params:?}");
        }
    }
}
