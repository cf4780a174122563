//! One HTTP exchange with a provider: at most one attempt per key, with limits on time and size.

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

use super::api_keys::{ApiKeys, KeyCooldown};
use super::deviations::{DeviationCounts, ResponseDeviations};
use super::refused_parts::RefusedParts;
use super::wire_format::WireRequest;
use egress::redact::Redactor;
use egress::upstream::UpstreamError;
use egress::{Egress, EgressError};

mod answer;
mod provider_errors;
mod reading;

pub(super) use answer::ResponseParser;
pub(super) use provider_errors::error_in;
pub(super) use reading::{Event, Item, ResponseItems};

use provider_errors::{GoogleErrorDetails, error_message};
use reading::ResponseReader;

/// Header for beta features.
const BETA: HeaderName = HeaderName::from_static("anthropic-beta");
/// Maximum size of a complete response.
const ANSWER_BYTES: usize = 32 * 1024 * 1024;
/// Maximum number of bytes read of an error response.
const ERROR_BYTES: usize = 16 * 1024;
/// Maximum number of refused parts of one request: each effort level below the highest, and its reasoning.
const REFUSED_PARTS: usize = 4;
/// Maximum time of a probe, unless `idle` is shorter.
const LIST: Duration = Duration::from_secs(10);

/// Address and credentials of a provider.
#[derive(Clone)]
pub struct ProviderAddress {
    pub base_url: Url,
    pub api_keys: Vec<SecretString>,
    /// Static headers of each request; each may be a secret.
    pub headers: BTreeMap<String, SecretString>,
    /// Maximum silence before the response and between two pieces of it.
    pub idle: Duration,
    /// Records protocol deviations of the provider.
    pub deviations: DeviationCounts,
}

/// Header that carries the key.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyHeader {
    /// `Authorization: Bearer …`
    Bearer,
    /// `x-api-key: …`
    ApiKey,
    /// `x-goog-api-key: …`
    GoogApiKey,
}

/// Path and query below the base URL.
#[derive(Clone, Copy)]
struct UpstreamTarget<'a> {
    path: &'a [&'a str],
    query: Option<&'static str>,
}

impl<'a> UpstreamTarget<'a> {
    fn at(path: &'a [&'a str]) -> Self {
        Self { path, query: None }
    }
}

pub(super) struct Exchange {
    egress: Egress,
    base_url: Url,
    keys: ApiKeys,
    key_header: KeyHeader,
    headers: HeaderMap,
    idle: Duration,
    redactor: Redactor,
    reader: ResponseParser,
    refused_parts: RefusedParts,
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
            reader: ResponseParser::new(redactor.clone(), address.deviations),
            redactor,
            refused_parts: RefusedParts::default(),
        }
    }

    pub(super) fn with_header(mut self, name: &'static str, value: &'static str) -> Self {
        let name = HeaderName::from_static(name);
        self.headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
        self
    }

    /// Sends a GET. The response must be a JSON object.
    pub(super) async fn get(&self, path: &[&str]) -> Result<JsonObject, UpstreamError> {
        self.object(self.send(path, None, "application/json").await?)
            .await
    }

    /// Sends a POST. The response must be a JSON object.
    pub(super) async fn post(
        &self,
        path: &[&str],
        posted: &WireRequest,
    ) -> Result<JsonObject, UpstreamError> {
        self.object(self.send(path, Some(posted), "application/json").await?)
            .await
    }

    /// Sends a POST and returns the raw response.
    pub(super) async fn post_for_text(
        &self,
        path: &[&str],
        posted: &WireRequest,
    ) -> Result<Vec<u8>, UpstreamError> {
        self.text(self.send(path, Some(posted), "application/json").await?)
            .await
    }

    /// Parses an object.
    async fn object(&self, response: Response) -> Result<JsonObject, UpstreamError> {
        // Some servers report errors with status 200; these fail here.
        let object = self.reader.object(&self.text(response).await?)?;
        let failed = error_in(&self.redactor, &object);
        failed.map_or(Ok(object), Err)
    }

    /// The error in a response with status 200.
    pub(super) fn error_of(&self, text: &[u8]) -> Option<UpstreamError> {
        let is_short = text.len() <= ERROR_BYTES;
        let object = is_short.then(|| self.reader.object(text).ok()).flatten()?;
        error_in(&self.redactor, &object)
    }

    async fn text(&self, response: Response) -> Result<Vec<u8>, UpstreamError> {
        let bytes = self.read(response, ANSWER_BYTES).await?;
        if bytes.len() > ANSWER_BYTES {
            return Err(UpstreamError::TooLarge { max: ANSWER_BYTES });
        }
        Ok(bytes)
    }

    /// Sends a completion request. Returns its events, or one document, whichever the server sends. An error
    /// before the first event fails the call, unless the response is declared as a stream.
    pub(super) async fn complete(
        &self,
        path: &[&str],
        posted: &WireRequest,
        accept: &'static str,
    ) -> Result<ResponseItems, UpstreamError> {
        let response = self.send(path, Some(posted), accept).await?;
        let reading = ResponseReader::new(response, self.reader.clone(), self.idle);
        if reading.declares_stream() {
            return Ok(stream::unfold(reading, ResponseReader::next).boxed());
        }
        let Some((first, reading)) = reading.next().await else {
            return Ok(stream::empty().boxed());
        };
        // Hold a document back until it is checked: an error must fail the call, not the stream.
        let first = first?;
        if let Item::Document(document) = &first
            && let Some(failed) = error_in(&self.redactor, document)
        {
            return Err(failed);
        }
        let rest = stream::unfold(reading, ResponseReader::next);
        Ok(stream::iter([Ok(first)]).chain(rest).boxed())
    }

    /// Records protocol deviations of one response.
    pub(super) fn noted(&self) -> ResponseDeviations {
        self.reader.noted()
    }

    /// Sends a request, without the parts that this provider refuses.
    async fn send(
        &self,
        path: &[&str],
        posted: Option<&WireRequest>,
        accept: &'static str,
    ) -> Result<Response, UpstreamError> {
        let Some(posted) = posted else {
            return self.send_unchanged(path, None, accept).await;
        };
        let with = |body| WireRequest {
            body,
            betas: posted.betas.clone(),
            query: posted.query,
        };
        let mut changed = self
            .refused_parts
            .without_remembered(&posted.body)
            .map(with);
        let mut left = REFUSED_PARTS;
        loop {
            let attempt = changed.as_ref().unwrap_or(posted);
            match self.send_unchanged(path, Some(attempt), accept).await {
                Err(refusal) if left > 0 => {
                    left -= 1;
                    match self.refused_parts.without_refused(&attempt.body, &refusal) {
                        Some(without) => changed = Some(with(without)),
                        None => return Err(refusal),
                    }
                }
                sent => return sent,
            }
        }
    }

    /// Tries the keys in turn while they are rejected or rate-limited. No response has been read then.
    async fn send_unchanged(
        &self,
        path: &[&str],
        posted: Option<&WireRequest>,
        accept: &'static str,
    ) -> Result<Response, UpstreamError> {
        let mut last = UpstreamError::Timeout;
        for _ in 0..self.keys.tries() {
            let key = self.keys.take(Instant::now());
            let request = self.request(path, posted, accept, key.map(|(_, key)| key))?;
            // Timeout of the head only; the body has a timeout for each piece.
            let sent = tokio::time::timeout(self.idle, self.egress.send(request));
            let response = sent.await.map_err(|_| UpstreamError::Timeout)??;
            if response.status().is_success() {
                return Ok(response);
            }
            last = self.refusal(response).await;
            let wait = match &last {
                UpstreamError::RateLimited { retry_after } => *retry_after,
                // Any other failure would repeat with the next key.
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
        posted: Option<&WireRequest>,
        accept: &'static str,
        key: Option<&SecretString>,
    ) -> Result<egress::RequestBuilder, UpstreamError> {
        let Some(posted) = posted else {
            return self.head(Method::GET, UpstreamTarget::at(path), accept, key);
        };
        let target = UpstreamTarget {
            path,
            query: posted.query,
        };
        let mut request = self.head(Method::POST, target, accept, key)?;
        if !posted.betas.is_empty() {
            request = request.header(BETA, posted.betas.join(","));
        }
        let body = serde_json::to_vec(&posted.body)
            .map_err(|error| UpstreamError::Malformed(error.to_string()))?;
        let request = request.header(CONTENT_TYPE, "application/json");
        Ok(request.body(body))
    }

    /// A request with credentials, without a body.
    fn head(
        &self,
        method: Method,
        target: UpstreamTarget<'_>,
        accept: &'static str,
        key: Option<&SecretString>,
    ) -> Result<egress::RequestBuilder, UpstreamError> {
        let mut url = self.base_url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(target.path);
        }
        url.set_query(target.query);
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
                KeyHeader::GoogApiKey => request.header("x-goog-api-key", key),
            };
        }
        Ok(request)
    }

    async fn refusal(&self, response: Response) -> UpstreamError {
        let (status, headers) = (response.status(), response.headers().clone());
        // A body that breaks off still leaves the status, which is the more important part.
        let body = self.read(response, ERROR_BYTES).await.unwrap_or_default();
        let (status, headers) = GoogleErrorDetails::of_body(&body).refine(status, headers);
        let message = error_message(&body);
        UpstreamError::of_status(status, &headers, &self.redactor.redact(&message))
    }

    /// Returns at most `most` bytes plus one, so that the caller detects an excess.
    async fn read(&self, mut response: Response, limit: usize) -> Result<Vec<u8>, UpstreamError> {
        let mut bytes = Vec::new();
        while bytes.len() <= limit {
            let chunk = tokio::time::timeout(self.idle, response.chunk()).await;
            match chunk.map_err(|_| UpstreamError::Timeout)? {
                Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(error) => return Err(EgressError::from(error).into()),
            }
        }
        bytes.truncate(limit + 1);
        Ok(bytes)
    }

    pub(super) fn key_cooldowns(&self) -> Vec<Option<KeyCooldown>> {
        self.keys.resting(Instant::now())
    }

    /// Lists the model ids, once per key or once without a key.
    pub(super) async fn list_models(
        &self,
        path: &[&str],
        query: Option<&'static str>,
    ) -> Vec<Result<Vec<String>, UpstreamError>> {
        let target = UpstreamTarget { path, query };
        let keys: Vec<_> = match self.keys.all() {
            [] => vec![None],
            keys => keys.iter().map(Some).collect(),
        };
        let mut listed = Vec::with_capacity(keys.len());
        for key in keys {
            let listing = tokio::time::timeout(self.idle.min(LIST), self.list_with(target, key));
            listed.push(listing.await.unwrap_or(Err(UpstreamError::Timeout)));
        }
        listed
    }

    async fn list_with(
        &self,
        target: UpstreamTarget<'_>,
        key: Option<&SecretString>,
    ) -> Result<Vec<String>, UpstreamError> {
        let request = self.head(Method::GET, target, "application/json", key)?;
        let response = self.egress.send(request).await?;
        // The provider is available but has no model list.
        if matches!(response.status().as_u16(), 404 | 405 | 501) {
            return Ok(Vec::new());
        }
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        let bytes = self.read(response, ANSWER_BYTES).await?;
        let answer = Value::Object(self.reader.object(&bytes).unwrap_or_default());
        // An incomplete list cannot prove that a model is missing.
        let is_partial = answer["has_more"] == Value::Bool(true)
            || answer["nextPageToken"]
                .as_str()
                .is_some_and(|token| !token.is_empty());
        if is_partial {
            return Ok(Vec::new());
        }
        let items = |name: &str| answer[name].as_array().into_iter().flatten();
        let ids = items("data").filter_map(|item| item["id"].as_str());
        let names = items("models").filter_map(|item| item["name"].as_str());
        // Google's names are paths of the list.
        let names = names.map(|name| name.strip_prefix("models/").unwrap_or(name));
        Ok(ids.chain(names).map(str::to_owned).collect())
    }

    pub(super) fn deviations(&self) -> BTreeMap<String, u64> {
        self.reader.deviations()
    }

    pub(super) fn redactor(&self) -> Redactor {
        self.redactor.clone()
    }
}
