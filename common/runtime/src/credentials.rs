//! Where an API token comes from, and reading it again whenever it is asked for.
//!
//! Nothing here, `Debug` and errors included, ever shows a secret.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};

use crate::bounded;

/// Longest credential file that is read: a token id or secret is far below it.
const FILE_MAX: u64 = 4096;

/// A value that stands in the config or in a file beside it.
#[derive(Debug, Clone)]
pub enum Source {
    /// The value itself.
    Inline(SecretString),
    /// A file whose trimmed content is the value.
    File(PathBuf),
}

/// The two halves of an API token.
#[derive(Debug, Clone)]
pub struct TokenConfig {
    /// `user@realm!name`.
    pub id: Source,
    /// The secret, a UUID when PVE made it.
    pub secret: Source,
}

/// A token as it was at the moment of reading.
#[derive(Debug, Clone)]
pub struct Token {
    /// `user@realm!name`.
    pub id: String,
    /// The secret.
    pub secret: SecretString,
}

/// Why a token could not be had. It names files, never contents.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The file is not there or not readable.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is too long for a credential.
    #[error("{} is longer than a token can be", .0.display())]
    TooLong(PathBuf),
    /// The id is not of PVE's grammar.
    #[error("the token id must have the form user@realm!name")]
    Id,
    /// The secret is empty or holds a character that no HTTP header can carry.
    #[error("the token secret is empty or holds blanks or control characters")]
    Secret,
}

impl TokenConfig {
    /// Reads the token; files are read each time, so that a rotated token is seen.
    pub fn read(&self) -> Result<Token, CredentialError> {
        let id = self.id.read()?.expose_secret().to_owned();
        if !is_token_id(&id) {
            return Err(CredentialError::Id);
        }
        let secret = self.secret.read()?;
        let text = secret.expose_secret();
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(CredentialError::Secret);
        }
        Ok(Token { id, secret })
    }
}

impl Source {
    fn read(&self) -> Result<SecretString, CredentialError> {
        match self {
            Self::Inline(value) => Ok(value.clone()),
            Self::File(path) => read_file(path),
        }
    }
}

fn read_file(path: &Path) -> Result<SecretString, CredentialError> {
    let failed = |source| CredentialError::Read {
        path: path.to_owned(),
        source,
    };
    match bounded::read_to_string(path, FILE_MAX) {
        Ok(text) => Ok(SecretString::from(text.trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            Err(CredentialError::TooLong(path.to_owned()))
        }
        Err(error) => Err(failed(error)),
    }
}

/// `user@realm!name` as `PVE::AccessControl` takes it: no blanks, exactly one `!`, a realm.
fn is_token_id(text: &str) -> bool {
    let Some((user, name)) = text.split_once('!') else {
        return false;
    };
    let word = |t: &str| {
        !t.is_empty()
            && t.bytes()
                .all(|b| b.is_ascii_graphic() && !matches!(b, b'!' | b'=' | b':' | b'/'))
    };
    user.rsplit_once('@')
        .is_some_and(|(user, realm)| word(user) && word(realm))
        && word(name)
}
