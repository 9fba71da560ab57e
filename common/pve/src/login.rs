//! From a user's password to a ticket, for what an operator does by hand. The controllers have tokens and never log in.

use http::HeaderValue;
use secrecy::{ExposeSecret, SecretString};

use crate::classify;
use crate::config::{Endpoint, Timeouts, Token, Writes};
use crate::error::{ApiError, ConfigError, Effect, ErrorKind};
use crate::request::{ApiRequest, OpClass, Spec};
use crate::transport::{Bottom, Exchange};
use crate::wire::{self, Fields};

/// A second login makes a second ticket and harms nobody; PVE delays each refusal by 3 s.
static LOGIN: Spec = Spec {
    name: "POST /access/ticket",
    class: OpClass::Once,
    rights: &[],
};

/// `POST /access/ticket`: the ticket of a user (`root@pam`), which is good for 2 hours. A user with a second factor gets
/// none. Errors never hold the password.
pub async fn login(
    endpoints: &[Endpoint],
    timeouts: Timeouts,
    user: &str,
    password: &SecretString,
) -> Result<Token, ApiError> {
    let bottoms = crate::bottoms(endpoints, &timeouts).map_err(|error| unusable(&error))?;
    over(bottoms, (endpoints, timeouts), user, password).await
}

async fn over(
    bottoms: Vec<Bottom>,
    (endpoints, timeouts): (&[Endpoint], Timeouts),
    user: &str,
    password: &SecretString,
) -> Result<Token, ApiError> {
    let ways = crate::ways(endpoints, bottoms, &timeouts, &Writes::default())
        .map_err(|error| unusable(&error))?;
    let request = ApiRequest::new(&LOGIN, None, &[])
        .with("username", user)
        .with("password", password.expose_secret());
    let answer = match ways.send(&request).await {
        Ok(reply) if reply.status == 200 => wire::data(&reply.body)
            .and_then(|data| ticket(Fields::of(&data)?))
            .map_err(|reason| classify::undecodable(&LOGIN, reason)),
        Ok(reply) => Err(classify::reply(&LOGIN, &reply)),
        Err(error) => Err(classify::no_answer(&LOGIN, error)),
    };
    answer.map_err(|error| ApiError {
        // A proxy on the way may have said it back.
        detail: error.detail.replace(password.expose_secret(), "***"),
        ..error
    })
}

fn unusable(error: &ConfigError) -> ApiError {
    let kind = ErrorKind::Unreachable;
    ApiError::new(&LOGIN, kind, Effect::None, error.to_string())
}

fn ticket(fields: Fields<'_>) -> Result<Token, String> {
    if fields.flag("NeedTFA") == Some(true) {
        return Err("the user has a second factor: use an API token instead".to_owned());
    }
    let secret = |key: &str| -> Result<SecretString, String> {
        let text = fields.text(key).ok_or(format!("no {key}"))?;
        // It becomes a header, whose value it must not end.
        let plain = text.bytes().all(|b| b.is_ascii_graphic() && b != b';');
        match HeaderValue::from_str(&text) {
            Ok(_) if plain && !text.is_empty() => Ok(text.into()),
            _ => Err(format!("{key} can't be used")),
        }
    };
    Ok(Token {
        id: fields.text("username").ok_or("no username")?,
        secret: secret("ticket")?,
        csrf: Some(secret("CSRFPreventionToken")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{config, reply};
    use tower::service_fn;

    async fn answering(status: u16, body: &'static str) -> Result<Token, ApiError> {
        let bottom = Bottom::new(service_fn(move |request: http::Request<bytes::Bytes>| {
            assert!(request.headers().get("authorization").is_none());
            let form = String::from_utf8(request.body().to_vec()).unwrap();
            assert_eq!(form, "username=root%40pam&password=pa%3Bss%20word");
            async move { Ok(reply(status, "OK", body)) }
        }));
        let config = config(&["https://pve1:8006"]);
        let password = "pa;ss word".to_owned().into();
        over(
            vec![bottom],
            (&config.endpoints, config.timeouts),
            "root@pam",
            &password,
        )
        .await
    }

    #[tokio::test]
    async fn a_ticket_is_read_with_its_token_against_forged_requests() {
        let body = r#"{"data":{"username":"root@pam","ticket":"PVE:root@pam:1::a+/=","CSRFPreventionToken":"1:x"}}"#;
        let token = answering(200, body).await.unwrap();
        assert_eq!(token.id, "root@pam");
        assert_eq!(token.secret.expose_secret(), "PVE:root@pam:1::a+/=");
        assert_eq!(token.csrf.unwrap().expose_secret(), "1:x");
    }

    #[tokio::test]
    async fn a_second_factor_a_refusal_and_a_ticket_that_would_end_the_header_are_errors_without_the_password()
     {
        for (status, body, kind) in [
            (
                200,
                r#"{"data":{"username":"root@pam","ticket":"PVE:!tfa!x","CSRFPreventionToken":"1:x","NeedTFA":1}}"#,
                ErrorKind::Decode,
            ),
            (
                200,
                r#"{"data":{"username":"root@pam","ticket":"a;b","CSRFPreventionToken":"1:x"}}"#,
                ErrorKind::Decode,
            ),
            (
                200,
                r#"{"data":{"username":"root@pam","ticket":"a"}}"#,
                ErrorKind::Decode,
            ),
            (
                401,
                r#"{"data":null,"message":"authentication failure for pa;ss word\n"}"#,
                ErrorKind::Unauthenticated,
            ),
        ] {
            let error = answering(status, body).await.unwrap_err();
            assert_eq!(error.kind, kind, "{body}");
            assert!(!format!("{error} {error:?}").contains("pa;ss"), "{error}");
        }
    }
}
