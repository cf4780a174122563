//! Wire forms in which a provider is asked without a translation.

use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _};
use http::HeaderName;
use protocol::JsonObject;

use super::exchange::{Event, Exchange, Item, Posted, error_in};
use egress::upstream::UpstreamError;

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

/// A request in a wire form.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// As the provider gets it.
    pub body: JsonObject,
    /// Names for the header `anthropic-beta`; providers of other forms get none.
    pub betas: Vec<&'static str>,
}

impl From<JsonObject> for Asked {
    fn from(body: JsonObject) -> Self {
        Self {
            body,
            betas: Vec::new(),
        }
    }
}

impl Asked {
    /// As it is posted to a provider that knows betas.
    fn posted(&self) -> Posted<'_> {
        let betas = (!self.betas.is_empty()).then(|| self.betas.join(","));
        Posted::from(&self.body).with_header(BETA, betas)
    }
}

/// Where a request names beta features.
const BETA: HeaderName = HeaderName::from_static("anthropic-beta");

/// The events of one streamed answer, each the JSON of its `data`. An error is the last item. Ends where the provider's
/// stream ends; the caller judges whether the answer was whole.
pub type Events = BoxStream<'static, Result<JsonObject, UpstreamError>>;

/// Asks for a whole answer.
pub(super) async fn ask(
    exchange: &Exchange,
    path: &[&str],
    mut asked: Asked,
) -> Result<JsonObject, UpstreamError> {
    asked.body.remove("stream");
    exchange.post(path, asked.posted()).await
}

/// Asks for the events of an answer.
pub(super) async fn ask_for_events(
    exchange: &Exchange,
    path: &[&str],
    mut asked: Asked,
) -> Result<Events, UpstreamError> {
    asked.body.insert("stream".to_owned(), true.into());
    let posted = asked.posted();
    let items = exchange.complete(path, posted, "text/event-stream").await?;
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
