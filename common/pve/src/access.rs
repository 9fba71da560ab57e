//! What the token may do.

use std::collections::BTreeSet;

use crate::Client;
use crate::error::ApiError;
use crate::request::{ApiRequest, OpClass, Spec};
use crate::wire::Fields;

pub(crate) static PERMISSIONS: Spec = Spec {
    name: "GET /access/permissions",
    class: OpClass::Read,
    rights: &[],
};

pub(crate) static ENDPOINTS: [&Spec; 1] = [&PERMISSIONS];

impl Client {
    /// `GET /access/permissions?path=`; no privilege for oneself. The privileges that the token holds on an ACL path
    /// (`/vms/100`, `/storage/local`). PVE's value is the propagate flag: 0 means granted all the same.
    pub async fn permissions(&self, path: &str) -> Result<BTreeSet<String>, ApiError> {
        let request = ApiRequest::new(&PERMISSIONS, None, &[]).with("path", path);
        self.call(request, |data| {
            let granted = Fields::of(data)?
                .object(path)
                .ok_or("the path is missing")?;
            Ok(granted.0.keys().cloned().collect())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{client, reply};

    #[tokio::test]
    async fn a_privilege_without_propagation_is_granted_all_the_same() {
        let client = client(|request| {
            assert_eq!(request.uri().query(), Some("path=%2Fvms%2F9999"));
            Ok(reply(
                200,
                "OK",
                r#"{"data":{"/vms/9999":{"VM.Audit":0,"VM.Config.Disk":1}}}"#,
            ))
        });
        let granted = client.permissions("/vms/9999").await.unwrap();
        assert!(granted.iter().eq(["VM.Audit", "VM.Config.Disk"]));
    }

    #[tokio::test]
    async fn an_answer_about_another_path_is_no_answer() {
        let client = client(|_| Ok(reply(200, "OK", r#"{"data":{}}"#)));
        assert!(client.permissions("/vms/9999").await.is_err());
    }
}
