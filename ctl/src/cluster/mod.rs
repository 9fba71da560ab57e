//! The tenant's API server as `pvectl` uses it. It may be hostile: what it answers is bounded, and names are taken as
//! names only.

mod names;
mod objects;
mod reach;

use std::time::Duration;

use http::Request as HttpRequest;
use kube::Client;
use kube::api::{
    DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use kube::core::Request;
use kube::core::request::Error as BuildError;
use pve_kube::{RequestError, answer};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use self::names::{Name, Text};
pub(crate) use self::objects::{
    Attachment, Claim, ClaimId, Class, ClusterNode, Driver, Item, Meta, Pod, Volume,
};
pub(crate) use self::reach::{ASKED_ANNOTATION, Reach, ReachError, Reached};

/// For one answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Objects of a page, and the bytes that they may have: larger ones are asked for in smaller pages.
const PAGE: u32 = 200;
const PAGE_MAX: usize = 8 << 20;
/// Of one object. etcd takes 1.5 MiB.
const OBJECT_MAX: usize = 4 << 20;
/// Of a whole list: objects, and bytes of what is kept of them. A Kubernetes is made for 150,000 Pods at most.
const ITEMS_MAX: usize = 150_000;
const KEPT_MAX: usize = 64 << 20;
/// A server that lets a list begin again and again would never end.
const BEGINNINGS: u32 = 3;

/// A client of one API server.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
}

/// Why something is not known or not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// The request failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The list is longer than any that is real.
    #[error("the list is too long")]
    TooMany,
    /// The list was begun anew too often.
    #[error("the list has no end")]
    Endless,
}

/// Which objects of a kind.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Choice<'a> {
    /// Every one.
    All,
    /// Those that a selector of labels chooses.
    Labels(&'a str),
    /// Those that a selector of fields chooses.
    Fields(&'a str),
}

/// What is deleted, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deletion<'a> {
    /// Its collection, as `/api/v1/namespaces/default/pods`.
    pub(crate) path: &'a str,
    /// `metadata.name`.
    pub(crate) name: &'a str,
    /// Only the object that was seen: one that was made anew in its place has another.
    pub(crate) uid: Option<&'a str>,
    /// Seconds that a Pod has to end; the server's default if none.
    pub(crate) grace: Option<u32>,
}

/// What became of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deleted {
    /// It is deleted, or will be once its finalizers are gone.
    Accepted,
    /// It was not there any more, or another has its name.
    Gone,
}

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Deserialize, Default)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

/// All that is read of some answers.
#[derive(Deserialize)]
struct Anything {}

// === impl ApiError ===

impl ApiError {
    /// The status that the server answered with, if it answered so.
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Request(RequestError::Status(status)) => Some(*status),
            Self::Request(_) | Self::TooMany | Self::Endless => None,
        }
    }

    fn is_too_large(&self) -> bool {
        matches!(self, Self::Request(RequestError::TooLarge))
    }
}

impl From<BuildError> for ApiError {
    fn from(error: BuildError) -> Self {
        Self::Request(RequestError::Request(error))
    }
}

// === impl Cluster ===

impl Cluster {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// For who asks by itself.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// All objects of a kind, or those that are chosen, page by page.
    pub(crate) async fn list<T: Item>(
        &self,
        path: &str,
        choice: Choice<'_>,
    ) -> Result<Vec<T>, ApiError> {
        for _ in 0..BEGINNINGS {
            match self.whole_list(path, choice).await {
                // What is continued is too old for the server: its etcd was compacted meanwhile.
                Err(error) if error.status() == Some(410) => {}
                outcome => return outcome,
            }
        }
        Err(ApiError::Endless)
    }

    async fn whole_list<T: Item>(
        &self,
        path: &str,
        choice: Choice<'_>,
    ) -> Result<Vec<T>, ApiError> {
        let mut all = Vec::new();
        let (mut limit, mut next, mut kept) = (PAGE, None, 0);
        loop {
            let mut parameters = ListParams {
                limit: Some(limit),
                continue_token: next.clone(),
                ..ListParams::default()
            };
            match choice {
                Choice::All => {}
                Choice::Labels(labels) => parameters.label_selector = Some(labels.to_owned()),
                Choice::Fields(fields) => parameters.field_selector = Some(fields.to_owned()),
            }
            let request = Request::new(path).list(&parameters)?;
            let page: Page<T> = match self.ask(request, PAGE_MAX).await {
                Err(error) if error.is_too_large() && limit > 1 => {
                    limit = (limit / 8).max(1);
                    continue;
                }
                page => page?,
            };
            // A page without objects that is not the last would cost nothing and never end.
            let endless = page.items.is_empty();
            kept += page.items.iter().map(Item::weight).sum::<usize>();
            all.extend(page.items);
            if all.len() > ITEMS_MAX || kept > KEPT_MAX {
                return Err(ApiError::TooMany);
            }
            match page.metadata.next.filter(|token| !token.is_empty()) {
                None => return Ok(all),
                Some(_) if endless => return Err(ApiError::Endless),
                token => next = token,
            }
        }
    }

    /// One object; none if there is none of that name.
    pub(crate) async fn find<T: DeserializeOwned>(
        &self,
        path: &str,
        name: &str,
    ) -> Result<Option<T>, ApiError> {
        let request = Request::new(path).get(name, &GetParams::default())?;
        match self.ask(request, OBJECT_MAX).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.status() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes an object.
    pub(crate) async fn create<T: DeserializeOwned>(
        &self,
        path: &str,
        object: &Value,
    ) -> Result<T, ApiError> {
        let text = serde_json::to_vec(object).map_err(BuildError::SerializeBody)?;
        let request = Request::new(path).create(&PostParams::default(), text)?;
        self.ask(request, OBJECT_MAX).await
    }

    /// Changes some fields of an object.
    pub(crate) async fn merge(
        &self,
        path: &str,
        name: &str,
        change: &Value,
    ) -> Result<(), ApiError> {
        let merge = Patch::Merge(change);
        let request = Request::new(path).patch(name, &PatchParams::default(), &merge)?;
        let Anything {} = self.ask(request, OBJECT_MAX).await?;
        Ok(())
    }

    /// Deletes an object and does not wait for its end.
    pub(crate) async fn delete(&self, what: Deletion<'_>) -> Result<Deleted, ApiError> {
        let parameters = DeleteParams {
            grace_period_seconds: what.grace,
            preconditions: what.uid.map(|uid| Preconditions {
                uid: Some(uid.to_owned()),
                ..Preconditions::default()
            }),
            ..DeleteParams::background()
        };
        let request = Request::new(what.path).delete(what.name, &parameters)?;
        match self.ask(request, OBJECT_MAX).await {
            Ok(Anything {}) => Ok(Deleted::Accepted),
            Err(error) if error.status() == Some(404) => Ok(Deleted::Gone),
            Err(error) if error.status() == Some(409) && what.uid.is_some() => Ok(Deleted::Gone),
            Err(error) => Err(error),
        }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        request: HttpRequest<Vec<u8>>,
        most: usize,
    ) -> Result<T, ApiError> {
        Ok(answer(&self.client, request, most, ANSWER).await?)
    }
}

#[cfg(test)]
mod tests;
