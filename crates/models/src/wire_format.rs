//! Wire formats that pass to a provider without translation.

use futures_util::stream;
use futures_util::{Stream, StreamExt as _};
use protocol::JsonObject;

use super::Chunks;
use super::exchange::{Event, Exchange, Item, error_in};
use egress::upstream::UpstreamError;

/// A wire format other than chat completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireFormat {
    /// Anthropic's `POST /v1/messages`.
    Messages,
    /// OpenAI's `POST /responses`.
    Responses,
}

impl WireFormat {
    /// The error for a provider that does not support this format.
    pub(super) fn unsupported(self) -> UpstreamError {
        UpstreamError::Unsupported(format!(
            "the provider takes no requests of the form {self:?}"
        ))
    }
}

/// A request to a provider.
#[derive(Clone, Debug)]
pub enum ProviderRequest {
    /// A chat completion.
    Completion(JsonObject),
    /// A request in a wire format that the provider supports, without translation.
    Wire(WireFormat, WireRequest),
}

impl From<JsonObject> for ProviderRequest {
    fn from(completion: JsonObject) -> Self {
        Self::Completion(completion)
    }
}

impl ProviderRequest {
    /// The body of a completion. An error for wire formats, which the provider does not support.
    pub fn completion(self) -> Result<JsonObject, UpstreamError> {
        match self {
            Self::Completion(body) => Ok(body),
            Self::Wire(format, _) => Err(format.unsupported()),
        }
    }
}

/// A request as the provider gets it.
#[derive(Clone, Debug, Default)]
pub struct WireRequest {
    /// Body as sent to the provider.
    pub body: JsonObject,
    /// Values of the header `anthropic-beta`. Providers of other formats do not receive it.
    pub betas: Vec<&'static str>,
    /// Query of the URL.
    pub query: Option<&'static str>,
}

impl From<JsonObject> for WireRequest {
    fn from(body: JsonObject) -> Self {
        Self {
            body,
            ..Self::default()
        }
    }
}

/// Requests a complete response.
pub(super) async fn ask(
    exchange: &Exchange,
    path: &[&str],
    mut request: WireRequest,
) -> Result<JsonObject, UpstreamError> {
    // The client may have set it for its own connection.
    request.body.remove("stream");
    exchange.post(path, &request).await
}

/// Requests the events of a streamed response: the JSON of each `data`. The stream may end early; the caller checks that
/// the response is complete.
pub(super) async fn request_events(
    exchange: &Exchange,
    path: &[&str],
    mut request: WireRequest,
) -> Result<Chunks, UpstreamError> {
    // The stream is requested even if the client's own response is not streamed.
    request.body.insert("stream".to_owned(), true.into());
    let items = exchange
        .complete(path, &request, "text/event-stream")
        .await?;
    let redactor = exchange.redactor();
    let events = items.filter_map(move |item| {
        let event = match item {
            // Servers without streaming send one document.
            Ok(Item::Event(Event { data, .. }) | Item::Document(data)) => {
                Some(error_in(&redactor, &data).map_or(Ok(data), Err))
            }
            Ok(Item::End) => None,
            Err(failed) => Some(Err(failed)),
        };
        std::future::ready(event)
    });
    Ok(until_error(events).boxed())
}

/// The items up to and including the first error.
fn until_error(
    events: impl Stream<Item = Result<JsonObject, UpstreamError>> + Send + 'static,
) -> impl Stream<Item = Result<JsonObject, UpstreamError>> + Send {
    let events = events.boxed();
    stream::unfold(Some(events), |events| async move {
        let mut events = events?;
        let item = events.next().await?;
        let rest = item.is_ok().then_some(events);
        Some((item, rest))
    })
}
