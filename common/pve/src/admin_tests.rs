use super::*;
use crate::testing::{client, reply};
use secrecy::ExposeSecret;

#[tokio::test]
async fn users_come_with_their_tokens_and_one_that_cannot_be_read_is_counted() {
    let client = client(|_| {
        let body = r#"{"data":[
            {"userid":"a@pve","enable":1,"groups":"x,y","tokens":[{"tokenid":"csi","privsep":"1","expire":0,"comment":"c"}]},
            {"userid":"b@pve","enable":0,"comment":"d"},
            {"userid":"c@pve","tokens":[{"privsep":1}]}]}"#;
        Ok(reply(200, "OK", body))
    });
    let users = client.users().await.unwrap();
    assert_eq!((users.entries.len(), users.undecodable), (2, 1));
    let [first, second] = users.entries.as_slice() else {
        panic!("two users");
    };
    assert_eq!(first.groups, ["x", "y"]);
    assert_eq!(first.tokens[0].name, "csi");
    assert!(first.tokens[0].privsep && first.enabled && !second.enabled);
}

#[tokio::test]
async fn a_token_is_asked_for_with_separated_privileges_and_its_secret_is_not_shown() {
    let client = client(|request| {
        assert_eq!(
            request.uri().path(),
            "/api2/json/access/users/a%40pve/token/csi"
        );
        assert_eq!(request.body().as_ref(), b"privsep=1&comment=x%20y");
        let body = r#"{"data":{"value":"0000-s3","full-tokenid":"a@pve!csi","info":{}}}"#;
        Ok(reply(200, "OK", body))
    });
    let secret = client.create_token("a@pve", "csi", "x y").await.unwrap();
    assert_eq!(secret.expose_secret(), "0000-s3");
    assert!(!format!("{secret:?}").contains("s3"));
}

#[tokio::test]
async fn a_grant_names_users_and_tokens_apart_and_says_whether_it_holds_below() {
    let client = client(|request| {
        let form = std::str::from_utf8(request.body()).unwrap();
        let expected = if form.contains("delete") {
            "path=%2F&roles=R&tokens=a%40pve%21csi&delete=1"
        } else {
            "path=%2F&roles=R&users=a%40pve&propagate=0"
        };
        assert_eq!(form, expected);
        Ok(reply(200, "OK", r#"{"data":null}"#))
    });
    let mut what = Assignment {
        path: "/",
        role: "R",
        subject: "a@pve",
        propagate: false,
    };
    client.grant(what).await.unwrap();
    what.subject = "a@pve!csi";
    client.take_away(what).await.unwrap();
}

#[tokio::test]
async fn a_line_of_the_list_for_an_unknown_kind_of_subject_is_counted() {
    let client = client(|_| {
        let body = r#"{"data":[
            {"path":"/","type":"group","ugid":"g","roleid":"R","propagate":1},
            {"path":"/","type":"robot","ugid":"g","roleid":"R"}]}"#;
        Ok(reply(200, "OK", body))
    });
    let acl = client.acl().await.unwrap();
    assert_eq!(
        (acl.entries[0].subject.as_str(), acl.undecodable),
        ("@g", 1)
    );
}
