//! Wire forms in which a provider is asked without a translation.

use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _};
use protocol::JsonObject;

use super::exchange::{Event, Exchange, Item, error_in};
use crate::outbound::upstream::UpstreamError;

/// A wire form beside chat completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Anthropic's `POST /v1/messages`.
    Messages,
    /// OpenAI's `POST /responses`.
    Responses,
}

impl Form {
    /// The error of a provider that takes no requests of this form.
    pub(super) fn unspoken(self) -> UpstreamError {
        UpstreamError::Unsupported(format!(
            "the provider takes no requests of the form {self:?}"
        ))
    }
}

/// The events of one streamed answer, each the JSON of its `data`. An error is the last item. Ends where the provider's
/// stream ends; the caller judges whether the answer was whole.
pub type Events = BoxStream<'static, Result<JsonObject, UpstreamError>>;

/// Asks for a whole answer.
pub(super) async fn ask(
    exchange: &Exchange,
    path: &[&str],
    mut body: JsonObject,
) -> Result<JsonObject, UpstreamError> {
    body.remove("stream");
    exchange.post(path, &body).await
}

/// Asks for the events of an answer.
pub(super) async fn ask_for_events(
    exchange: &Exchange,
    path: &[&str],
    mut body: JsonObject,
) -> Result<Events, UpstreamError> {
    body.insert("stream".to_owned(), true.into());
    let items = exchange.complete(path, &body, "text/event-stream").await?;
    let redactor = exchange.redactor();
    let events = items.filter_map(move |item| {
        let event = match item {
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

/// The items up to the first error, which is the last.
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
