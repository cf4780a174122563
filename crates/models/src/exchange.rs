//! One exchange with a provider over HTTP: sent once with each key at most, bounded in time and size.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use egress::Response;
use futures_util::StreamExt as _;
use futures_util::stream;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use protocol::JsonObject;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use url::Url;

use super::api_keys::{ApiKeys, Rest};
use super::notes::{Noted, Notes};
use egress::redact::Redactor;
use egress::upstream::UpstreamError;
use egress::{Egress, EgressError};

mod answer;
mod reading;
mod refused;

pub(super) use answer::AnswerReader;
pub(super) use reading::{Event, Item, Items};
pub(super) use refused::error_in;

use reading::Reading;
use refused::error_message;

/// A whole answer.
const ANSWER_BYTES: usize = 32 * 1024 * 1024;
/// An answer that is an error: enough of it to say why.
const ERROR_BYTES: usize = 16 * 1024;
/// How long a provider that is probed may take, unless it may take less.
const LIST: Duration = Duration::from_secs(10);

/// Where a provider is, and how we show ourselves there.
#[derive(Clone)]
pub struct ProviderAddress {
    pub base_url: Url,
    pub api_keys: Vec<SecretString>,
    /// Sent with every request; each may be a secret.
    pub headers: BTreeMap<String, SecretString>,
    /// How long it may be silent: until its answer begins, and between two pieces of it.
    pub idle: Duration,
    /// Keeps its deviations from the protocol.
    pub notes: Notes,
}

/// How a key is shown.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyHeader {
    /// `Authorization: Bearer …`
    Bearer,
    /// `x-api-key: …`
    ApiKey,
}

/// A body to post.
pub(super) struct Posted<'a> {
    body: &'a JsonObject,
    header: Option<(HeaderName, HeaderValue)>,
}

impl<'a> From<&'a JsonObject> for Posted<'a> {
    fn from(body: &'a JsonObject) -> Self {
        Self { body, header: None }
    }
}

impl Posted<'_> {
    /// The same with a header of its own. A value that no header can have is left out.
    pub(super) fn with_header(mut self, name: HeaderName, value: Option<String>) -> Self {
        let value = value.and_then(|value| HeaderValue::try_from(value).ok());
        self.header = value.map(|value| (name, value));
        self
    }
}

/// Speaks to one provider.
pub(super) struct Exchange {
    egress: Egress,
    base_url: Url,
    keys: ApiKeys,
    key_header: KeyHeader,
    headers: HeaderMap,
    idle: Duration,
    redactor: Redactor,
    reader: AnswerReader,
}

impl Exchange {
    pub(super) fn new(egress: Egress, address: ProviderAddress, key_header: KeyHeader) -> Self {
        let secrets = address.api_keys.iter().chain(address.headers.values());
        let redactor = Redactor::new(secrets.cloned());
        let mut headers = HeaderMap::new();
        for (name, value) in &address.headers {
            let value = HeaderValue::from_str(value.expose_secret());
            if let (Ok(name), Ok(mut value)) = (name.parse::<HeaderName>(), value) {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
        Self {
            egress,
            base_url: address.base_url,
            keys: ApiKeys::new(address.api_keys),
            key_header,
            headers,
            idle: address.idle,
            reader: AnswerReader::new(redactor.clone(), address.notes),
            redactor,
        }
    }

    /// Sends this header with every request that has no other of its name.
    pub(super) fn with_header(mut self, name: &'static str, value: &'static str) -> Self {
        let name = HeaderName::from_static(name);
        self.headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
        self
    }

    /// Gets a whole answer, which must be a JSON object.
    pub(super) async fn get(&self, path: &[&str]) -> Result<JsonObject, UpstreamError> {
        self.object(self.send(path, None, "application/json").await?)
            .await
    }

    /// Posts and reads a whole answer, which must be a JSON object.
    pub(super) async fn post(
        &self,
        path: &[&str],
        posted: impl Into<Posted<'_>>,
    ) -> Result<JsonObject, UpstreamError> {
        let posted = posted.into();
        self.object(self.send(path, Some(&posted), "application/json").await?)
            .await
    }

    /// Posts and gives the text of a whole answer, for those who judge it themselves.
    pub(super) async fn post_for_text(
        &self,
        path: &[&str],
        body: &JsonObject,
    ) -> Result<Vec<u8>, UpstreamError> {
        let posted = Posted::from(body);
        self.text(self.send(path, Some(&posted), "application/json").await?)
            .await
    }

    /// An object that is no error: some servers tell theirs under 200.
    async fn object(&self, response: Response) -> Result<JsonObject, UpstreamError> {
        let object = self.reader.object(&self.text(response).await?)?;
        let failed = error_in(&self.redactor, &object);
        failed.map_or(Ok(object), Err)
    }

    /// The error that the text of an answer under 200 tells.
    pub(super) fn error_of(&self, text: &[u8]) -> Option<UpstreamError> {
        let is_short = text.len() <= ERROR_BYTES;
        let object = is_short.then(|| self.reader.object(text).ok()).flatten()?;
        error_in(&self.redactor, &object)
    }

    async fn text(&self, response: Response) -> Result<Vec<u8>, UpstreamError> {
        let bytes = self.read(response, ANSWER_BYTES).await?;
        if bytes.len() > ANSWER_BYTES {
            return Err(UpstreamError::TooLarge { most: ANSWER_BYTES });
        }
        Ok(bytes)
    }

    /// Posts and gives what comes of a completion: its events, or one document, whichever was asked for. A failure that is
    /// told before the first of them fails the call itself, unless the answer says that it streams.
    pub(super) async fn complete(
        &self,
        path: &[&str],
        posted: impl Into<Posted<'_>>,
        accept: &'static str,
    ) -> Result<Items, UpstreamError> {
        let posted = posted.into();
        let response = self.send(path, Some(&posted), accept).await?;
        let reading = Reading::new(response, self.reader.clone(), self.idle);
        if reading.says_that_it_streams() {
            return Ok(stream::unfold(reading, Reading::next).boxed());
        }
        let Some((first, reading)) = reading.next().await else {
            return Ok(stream::empty().boxed());
        };
        let first = first?;
        if let Item::Document(document) = &first
            && let Some(failed) = error_in(&self.redactor, document)
        {
            return Err(failed);
        }
        let rest = stream::unfold(reading, Reading::next);
        Ok(stream::iter([Ok(first)]).chain(rest).boxed())
    }

    /// Deviations of one answer from the protocol.
    pub(super) fn noted(&self) -> Noted {
        self.reader.noted()
    }

    /// Sends with one key after the other, as long as they are refused or told to wait. Nothing of an
    /// answer has been read then.
    async fn send(
        &self,
        path: &[&str],
        posted: Option<&Posted<'_>>,
        accept: &'static str,
    ) -> Result<Response, UpstreamError> {
        let mut last = UpstreamError::Timeout;
        for _ in 0..self.keys.tries() {
            let key = self.keys.take(Instant::now());
            let request = self.request(path, posted, accept, key.map(|(_, key)| key))?;
            let sent = tokio::time::timeout(self.idle, self.egress.send(request));
            let response = sent.await.map_err(|_| UpstreamError::Timeout)??;
            if response.status().is_success() {
                return Ok(response);
            }
            last = self.refusal(response).await;
            let wait = match &last {
                UpstreamError::RateLimited { retry_after } => *retry_after,
                UpstreamError::Credential { .. } => None,
                _ => return Err(last),
            };
            if let Some((n, _)) = key {
                self.keys.rest(n, wait, last.reason(), Instant::now());
            }
        }
        Err(last)
    }

    fn request(
        &self,
        path: &[&str],
        posted: Option<&Posted<'_>>,
        accept: &'static str,
        key: Option<&SecretString>,
    ) -> Result<egress::RequestBuilder, UpstreamError> {
        let Some(posted) = posted else {
            return self.head(Method::GET, path, accept, key);
        };
        let mut request = self.head(Method::POST, path, accept, key)?;
        if let Some((name, value)) = &posted.header {
            request = request.header(name, value);
        }
        let body = serde_json::to_vec(posted.body)
            .map_err(|error| UpstreamError::Malformed(error.to_string()))?;
        let request = request.header(CONTENT_TYPE, "application/json");
        Ok(request.body(body))
    }

    /// A request as the provider knows us, without a body.
    fn head(
        &self,
        method: Method,
        path: &[&str],
        accept: &'static str,
        key: Option<&SecretString>,
    ) -> Result<egress::RequestBuilder, UpstreamError> {
        let mut url = self.base_url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let mut request = self
            .egress
            .request(method, &url)?
            .header(ACCEPT, accept)
            .headers(self.headers.clone());
        if let Some(key) = key {
            let key = key.expose_secret();
            request = match self.key_header {
                KeyHeader::Bearer => request.bearer_auth(key),
                KeyHeader::ApiKey => request.header("x-api-key", key),
            };
        }
        Ok(request)
    }

    async fn refusal(&self, response: Response) -> UpstreamError {
        let (status, headers) = (response.status(), response.headers().clone());
        let body = self.read(response, ERROR_BYTES).await.unwrap_or_default();
        let message = error_message(&body);
        UpstreamError::of_status(status, &headers, &self.redactor.redact(&message))
    }

    /// At most one byte more than `most`, so that the caller sees that it is too large.
    async fn read(&self, mut response: Response, most: usize) -> Result<Vec<u8>, UpstreamError> {
        let mut bytes = Vec::new();
        while bytes.len() <= most {
            let chunk = tokio::time::timeout(self.idle, response.chunk()).await;
            match chunk.map_err(|_| UpstreamError::Timeout)? {
                Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(error) => return Err(EgressError::from(error).into()),
            }
        }
        bytes.truncate(most + 1);
        Ok(bytes)
    }

    /// Which keys rest.
    pub(super) fn resting_keys(&self) -> Vec<Option<Rest>> {
        self.keys.resting(Instant::now())
    }

    /// Asks for its list of models, once with each key or once without any: the ids.
    pub(super) async fn list_models(
        &self,
        path: &[&str],
    ) -> Vec<Result<Vec<String>, UpstreamError>> {
        let keys: Vec<_> = match self.keys.all() {
            [] => vec![None],
            keys => keys.iter().map(Some).collect(),
        };
        let mut listed = Vec::with_capacity(keys.len());
        for key in keys {
            let listing = tokio::time::timeout(self.idle.min(LIST), self.list_with(path, key));
            listed.push(listing.await.unwrap_or(Err(UpstreamError::Timeout)));
        }
        listed
    }

    async fn list_with(
        &self,
        path: &[&str],
        key: Option<&SecretString>,
    ) -> Result<Vec<String>, UpstreamError> {
        let request = self.head(Method::GET, path, "application/json", key)?;
        let response = self.egress.send(request).await?;
        // It answers, and lists nothing: not all do.
        if matches!(response.status().as_u16(), 404 | 405 | 501) {
            return Ok(Vec::new());
        }
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        let bytes = self.read(response, ANSWER_BYTES).await?;
        let answer = Value::Object(self.reader.object(&bytes).unwrap_or_default());
        // A part of a list says of no model that it is not there.
        if answer["has_more"] == Value::Bool(true) {
            return Ok(Vec::new());
        }
        let items = answer["data"].as_array().into_iter().flatten();
        let ids = items.filter_map(|item| item["id"].as_str().map(str::to_owned));
        Ok(ids.collect())
    }

    /// Deviations of its answers, by kind.
    pub(super) fn deviations(&self) -> BTreeMap<String, u64> {
        self.reader.deviations()
    }

    /// Takes this provider's secrets out of texts.
    pub(super) fn redactor(&self) -> Redactor {
        self.redactor.clone()
    }
}
