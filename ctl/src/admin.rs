//! The rights with which a tenant is set up: a user who logs in, or a token that may do it. Neither is ever an argument or
//! in the environment, where others on the machine could read it.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use pve_client::{Client, ClientConfig, Limits, Metrics, Timeouts, Token, Writes, login};
use pve_region::connect::endpoints;
use pve_runtime::config::EndpointConfig;
use secrecy::{ExposeSecret, SecretString};

use crate::output::Failure;

/// Longest file with a password or a token.
const MOST: u64 = 4096;
const STDIN: &str = "-";

/// Who does it.
#[derive(Debug, Args)]
pub(crate) struct AdminArguments {
    /// The user who logs in with the password.
    #[arg(
        id = "admin_user",
        long = "admin-user",
        value_name = "USER@REALM",
        default_value = "root@pam"
    )]
    user: String,
    /// The file with the user's password; - for standard input.
    #[arg(
        id = "admin_password_file",
        long = "admin-password-file",
        value_name = "FILE",
        conflicts_with = "admin_token_file"
    )]
    password_file: Option<PathBuf>,
    /// The file with an API token in the place of a password, as <user>@<realm>!<name>=<secret>; - for standard input.
    #[arg(
        id = "admin_token_file",
        long = "admin-token-file",
        value_name = "FILE"
    )]
    token_file: Option<PathBuf>,
}

impl AdminArguments {
    /// Whether any are given.
    pub(crate) fn are_given(&self) -> bool {
        self.password_file.is_some() || self.token_file.is_some()
    }

    /// A client with these rights.
    pub(crate) async fn connect(&self, reached: &[EndpointConfig]) -> Result<Client, Failure> {
        let reached = endpoints(reached);
        let timeouts = Timeouts::default();
        let token = match (&self.password_file, &self.token_file) {
            (Some(path), _) => {
                let password = read_aside(path).await?;
                login(&reached, timeouts, &self.user, &password).await?
            }
            (None, Some(path)) => token(&read_aside(path).await?).ok_or_else(|| {
                Failure::Refused(format!(
                    "{} does not hold <user>@<realm>!<name>=<secret>",
                    path.display()
                ))
            })?,
            (None, None) => {
                return Failure::refused(
                    "--admin-password-file or --admin-token-file is needed: what may change users and rights",
                );
            }
        };
        client(reached, token, timeouts)
    }
}

/// A client that proves itself by `token`.
pub(crate) fn client(
    endpoints: Vec<pve_client::Endpoint>,
    token: Token,
    timeouts: Timeouts,
) -> Result<Client, Failure> {
    let config = ClientConfig {
        endpoints,
        token: Arc::new(move || Ok(token.clone())),
        limits: Limits::default(),
        timeouts,
        writes: Writes::default(),
    };
    Client::new(config, Metrics::default()).map_err(|error| Failure::Refused(error.to_string()))
}

/// Who writes to a pipe may take his time, while signals and time limits hold.
async fn read_aside(path: &Path) -> Result<SecretString, Failure> {
    let path = path.to_owned();
    let reading = tokio::task::spawn_blocking(move || read(&path)).await;
    reading.unwrap_or_else(|error| Failure::failed(error.to_string()))
}

fn read(path: &Path) -> Result<SecretString, Failure> {
    let mut text = String::new();
    let read = if path == Path::new(STDIN) {
        if std::io::stdin().is_terminal() {
            return Failure::refused(
                "standard input is a terminal, which would show what is typed: use a file or a pipe",
            );
        }
        std::io::stdin().take(MOST).read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MOST).read_to_string(&mut text))
    };
    match read {
        // A password may begin or end with blanks; the end of the line is not part of it.
        Ok(_) if !text.trim().is_empty() => Ok(text.trim_end_matches(['\r', '\n']).into()),
        Ok(_) => Failure::refused(format!("{} is empty", path.display())),
        Err(error) => Failure::refused(format!("cannot read {}: {error}", path.display())),
    }
}

/// As PVE shows it: `user@realm!name=secret`.
fn token(text: &SecretString) -> Option<Token> {
    let (id, secret) = text.expose_secret().trim().split_once('=')?;
    let (user, name) = id.split_once('!')?;
    let fits = user.contains('@') && !name.is_empty();
    let plain = !secret.is_empty() && secret.bytes().all(|b| b.is_ascii_graphic());
    (fits && plain).then(|| Token {
        id: id.to_owned(),
        secret: secret.to_owned().into(),
        csrf: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_pve_shows_it_and_nothing_else_is_one() {
        let read = |text: &str| token(&text.to_owned().into()).map(|token| token.id);
        assert_eq!(read("root@pam!a=s3cret\n").as_deref(), Some("root@pam!a"));
        for wrong in [
            "root@pam!a",
            "root@pam=s",
            "root!a=s",
            "root@pam!a=",
            "root@pam!a=x y",
            "root@pam!=x",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_file_that_is_empty_or_not_there_is_no_password() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        assert!(matches!(read(&path), Err(Failure::Refused(_))));
        std::fs::write(&path, "\n").unwrap();
        assert!(matches!(read(&path), Err(Failure::Refused(_))));
        std::fs::write(&path, " pass word\r\n").unwrap();
        assert_eq!(read(&path).unwrap().expose_secret(), " pass word");
    }
}
