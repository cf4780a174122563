//! Providers over HTTP. Requests, streams, errors and keys are the same for every API; a [`HttpApi`] has the
//! translation.

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use protocol::JsonObject;

use super::completions::{CompletionPiece, assembled, normalized, requested_answers};
use super::exchange::{Event, Exchange, Item, ResponseItems, error_in};
use super::{
    Chunks, KeyCooldown, Provider, ProviderEmbeddings, ProviderRequest, ThoughtCount, WireFormat,
    WireRequest, wire_format,
};
use egress::redact::Redactor;
use egress::upstream::UpstreamError;
use llm_formats::FormatError;

/// A path below the base URL.
pub(super) type Path = &'static [&'static str];

/// Form of a requested answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyForm {
    Document,
    Stream,
}

/// Path and query of a request for a completion.
pub(super) struct RequestPath {
    pub(super) segments: Vec<String>,
    pub(super) query: Option<&'static str>,
}

impl From<Path> for RequestPath {
    fn from(path: Path) -> Self {
        Self {
            segments: path.iter().map(|segment| (*segment).to_owned()).collect(),
            query: None,
        }
    }
}

/// The API of a provider: translation from and to chat completions.
pub(super) trait HttpApi: Send + Sync + 'static {
    /// Path of the model list.
    const MODELS: Path;
    /// Query of the model list.
    const MODELS_QUERY: Option<&'static str> = None;
    /// State of one streamed answer.
    type Reader: Default + Send + 'static;

    /// Path of a completion. `body`: the chat completion.
    fn path(&self, body: &JsonObject, form: ReplyForm) -> RequestPath;
    /// The body of a request for a document.
    fn request(&self, body: JsonObject) -> Result<JsonObject, UpstreamError>;
    /// The body of a request for a stream.
    fn stream_request(&self, body: JsonObject) -> Result<JsonObject, UpstreamError> {
        let mut request = self.request(body)?;
        request.insert("stream".to_owned(), true.into());
        Ok(request)
    }
    /// The completion in a document.
    fn completion(document: JsonObject) -> Result<JsonObject, UpstreamError>;
    /// The piece of an event. `None`: it adds nothing to a completion.
    fn piece(
        reader: &mut Self::Reader,
        event: Event,
    ) -> Result<Option<CompletionPiece>, UpstreamError>;
    /// Path of requests that need no translation. `None`: the provider does not support the format.
    fn wire_path(&self, format: WireFormat) -> Option<Path>;
    /// Path of `embeddings` or `rerank`.
    fn reading_path(&self, name: &'static str) -> Result<[&'static str; 1], UpstreamError>;
    /// As [`Provider::bound`].
    fn bound(&self) -> &'static str;
    /// As [`Provider::thought_count`].
    fn thought_count(&self) -> ThoughtCount;
}

/// A provider with this API.
pub struct HttpProvider<A> {
    pub(super) exchange: Exchange,
    pub(super) api: A,
}

fn chunks<A: HttpApi>(exchange: &Exchange, items: ResponseItems, request: &JsonObject) -> Chunks {
    let redactor = exchange.redactor();
    let mut reader = A::Reader::default();
    let pieces = items.flat_map(move |item| {
        let pieces = item.and_then(|item| pieces::<A>(&mut reader, &redactor, item));
        stream::iter(match pieces {
            Ok(pieces) => pieces.into_iter().map(Ok).collect(),
            Err(failed) => vec![Err(failed)],
        })
    });
    let answers = requested_answers(request);
    normalized(pieces.boxed(), answers, exchange.noted())
}

/// The error of a translation.
pub(super) fn upstream_error(error: FormatError) -> UpstreamError {
    match error {
        FormatError::Unsupported(what) => UpstreamError::Unsupported(what),
        FormatError::Malformed(what) => UpstreamError::Malformed(what),
    }
}

fn supported_path(api: &impl HttpApi, format: WireFormat) -> Result<Path, UpstreamError> {
    api.wire_path(format).ok_or_else(|| format.unsupported())
}

fn pieces<A: HttpApi>(
    reader: &mut A::Reader,
    redactor: &Redactor,
    item: Item,
) -> Result<Vec<CompletionPiece>, UpstreamError> {
    match item {
        Item::End => Ok(vec![CompletionPiece::End]),
        Item::Document(document) => {
            let completion = completion::<A>(redactor, document)?;
            Ok(vec![
                CompletionPiece::complete(completion),
                CompletionPiece::End,
            ])
        }
        Item::Event(event) => match error_of_event(redactor, &event) {
            Some(failed) => Err(failed),
            None => Ok(A::piece(reader, event)?.into_iter().collect()),
        },
    }
}

fn completion<A: HttpApi>(
    redactor: &Redactor,
    document: JsonObject,
) -> Result<JsonObject, UpstreamError> {
    error_in(redactor, &document).map_or_else(|| A::completion(document), Err)
}

fn error_of_event(redactor: &Redactor, event: &Event) -> Option<UpstreamError> {
    error_in(redactor, &event.data).or_else(|| {
        // Some servers name the event `error` and send the error without a wrapper.
        let is_error = event.name.as_deref() == Some("error");
        let wrapped = || JsonObject::from_iter([("error".to_owned(), event.data.clone().into())]);
        is_error.then(|| error_in(redactor, &wrapped())).flatten()
    })
}

#[async_trait]
impl<A: HttpApi> Provider for HttpProvider<A> {
    async fn complete(&self, request: ProviderRequest) -> Result<JsonObject, UpstreamError> {
        let body = match request {
            ProviderRequest::Completion(body) => body,
            ProviderRequest::Wire(format, request) => {
                let path = supported_path(&self.api, format)?;
                return wire_format::ask(&self.exchange, path, request).await;
            }
        };
        let path = self.api.path(&body, ReplyForm::Document);
        let request = WireRequest {
            query: path.query,
            ..self.api.request(body)?.into()
        };
        let segments: Vec<_> = path.segments.iter().map(String::as_str).collect();
        let items = self
            .exchange
            .complete(&segments, &request, "application/json");
        let mut items = items.await?;
        // A server may stream although no stream was requested.
        let first = match items.next().await {
            Some(Ok(Item::Document(document))) => {
                return completion::<A>(&self.exchange.redactor(), document);
            }
            first => stream::iter(first),
        };
        let items = first.chain(items).boxed();
        assembled(chunks::<A>(&self.exchange, items, &request.body)).await
    }

    async fn stream(&self, request: ProviderRequest) -> Result<Chunks, UpstreamError> {
        let body = match request {
            ProviderRequest::Completion(body) => body,
            ProviderRequest::Wire(format, request) => {
                let path = supported_path(&self.api, format)?;
                return wire_format::request_events(&self.exchange, path, request).await;
            }
        };
        let path = self.api.path(&body, ReplyForm::Stream);
        let request = WireRequest {
            query: path.query,
            ..self.api.stream_request(body)?.into()
        };
        let segments: Vec<_> = path.segments.iter().map(String::as_str).collect();
        let items = self
            .exchange
            .complete(&segments, &request, "text/event-stream");
        Ok(chunks::<A>(&self.exchange, items.await?, &request.body))
    }

    async fn embed(&self, body: JsonObject) -> Result<ProviderEmbeddings, UpstreamError> {
        let path = self.api.reading_path("embeddings")?;
        let text = self.exchange.post_for_text(&path, &body.into()).await?;
        ProviderEmbeddings::read(&text)
            // Report the provider's own error if the text is one.
            .map_err(|unread| self.exchange.error_of(&text).unwrap_or(unread))
    }

    async fn rerank(&self, body: JsonObject) -> Result<JsonObject, UpstreamError> {
        let path = self.api.reading_path("rerank")?;
        self.exchange.post(&path, &body.into()).await
    }

    fn supports(&self, format: WireFormat) -> bool {
        self.api.wire_path(format).is_some()
    }

    async fn list_models(&self) -> Vec<Result<Vec<String>, UpstreamError>> {
        self.exchange.list_models(A::MODELS, A::MODELS_QUERY).await
    }

    fn bound(&self) -> &'static str {
        self.api.bound()
    }

    fn thought_count(&self) -> ThoughtCount {
        self.api.thought_count()
    }

    fn key_cooldowns(&self) -> Vec<Option<KeyCooldown>> {
        self.exchange.key_cooldowns()
    }

    fn deviations(&self) -> BTreeMap<String, u64> {
        self.exchange.deviations()
    }
}
