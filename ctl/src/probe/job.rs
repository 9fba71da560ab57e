//! A Job for the management cluster that probes a tenant's cluster.

use super::ProbeArguments;

/// As YAML: a service account that may read the one Secret, and the Job. None without a Secret.
pub(super) fn manifest(arguments: &ProbeArguments) -> Option<String> {
    let secret = arguments.reach.kubeconfig_secret.as_ref()?;
    // JSON's strings are YAML's double-quoted ones.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let namespace = quoted(secret.namespace.as_str());
    let name = quoted(secret.name.as_str());
    let flags = [
        (
            "--kubeconfig-secret",
            format!("{}/{}", secret.namespace, secret.name),
        ),
        ("--kubeconfig-key", arguments.reach.kubeconfig_key.clone()),
        ("--storage-class", arguments.storage_class.to_string()),
        ("--namespace", arguments.namespace.to_string()),
        ("--image", arguments.image.clone()),
        ("--size", arguments.size.clone()),
        ("--driver-name", arguments.driver_name.clone()),
        ("--timeout", format!("{}s", arguments.timeout.as_secs())),
    ];
    let flags = flags
        .map(|(flag, value)| format!("            - {}\n", quoted(&format!("{flag}={value}"))));
    let image = quoted(&arguments.job_image);
    let seconds = (arguments.timeout + super::cleanup::CLEANUP).as_secs() + 60;
    Some(format!(
        include_str!("job.yaml"),
        namespace = namespace,
        secret = name,
        image = image,
        flags = flags.concat(),
        seconds = seconds,
    ))
}
