//! Everything a runner written in Rust needs: a server that speaks the runner API, and a client
//! for the host API. Write a [`Runner`], hand it to [`router`], and [`serve`] it.
//!
//! A small agent: it sends the history and the message to the first granted model, and streams the model's answer. A
//! work that returns without a terminal result has completed.
//!
//! ```
//! use futures_util::StreamExt as _;
//! use protocol::manifest::{AgentRunnerManifest, Capabilities, I18n, Permissions};
//! use protocol::message::{Message, MessageContent};
//! use protocol::model::LlmRequest;
//! use protocol::resources::{HistoryOperation, ModelOperation};
//! use runner_kit::host::HistoryPageQuery;
//! use runner_kit::{ResultSender, ResultStream, RunError, RunHandle, Runner, results, stream};
//!
//! struct Small;
//!
//! impl Runner for Small {
//!     fn manifest(&self) -> AgentRunnerManifest {
//!         let id = "plugin:example/small/default".parse().expect("an id of three parts");
//!         let label = I18n::from([("en_US".to_owned(), "Small".to_owned())]);
//!         AgentRunnerManifest {
//!             capabilities: Capabilities { streaming: true, interrupt: true, ..Default::default() },
//!             permissions: Permissions {
//!                 models: vec![ModelOperation::Stream],
//!                 history: vec![HistoryOperation::Page],
//!                 ..Default::default()
//!             },
//!             ..AgentRunnerManifest::new(id, label)
//!         }
//!     }
//!
//!     fn run(&self, run: RunHandle) -> ResultStream {
//!         stream(|out| answer(run, out))
//!     }
//! }
//!
//! async fn answer(run: RunHandle, out: ResultSender) -> Result<(), RunError> {
//!     let granted = run.context.resources.models.first();
//!     let model = granted.ok_or_else(|| RunError::new("runner.no_model", "no model is granted"))?;
//!     let mut messages = Vec::new();
//!     if run.context.context.available_apis.history_page {
//!         // The newest come first, the current message among them.
//!         let page = run.until_cancelled(run.host.history().page(&HistoryPageQuery::default())).await??;
//!         let current = &run.context.event.event_id;
//!         let before = page.items.iter().rev().filter(|item| item.event_id != *current);
//!         messages.extend(before.filter_map(|item| Some(Message::text(&item.role, item.content.as_deref()?))));
//!     }
//!     let text = run.context.input.text.clone().unwrap_or_default();
//!     messages.push(Message::text("user", text));
//!     let request = LlmRequest { messages, ..Default::default() };
//!     let speaking = run.host.models().stream(&model.model_id, &request);
//!     let mut speaking = run.until_cancelled(speaking).await??;
//!     let mut answer = String::new();
//!     while let Some(event) = run.until_cancelled(speaking.next()).await? {
//!         let content = event?.chunk.and_then(|chunk| chunk.content);
//!         let piece = content.as_ref().map(MessageContent::plain_text).unwrap_or_default();
//!         if !piece.is_empty() {
//!             answer.push_str(&piece);
//!             out.send(results::delta(piece)).await;
//!         }
//!     }
//!     out.send(results::completed(answer)).await;
//!     Ok(())
//! }
//! ```

pub mod runner; // start here: the trait of a runner

pub mod results;
pub mod stream;

pub mod host;

pub mod process;
pub mod server;

pub mod testing;

mod frame;
mod signal;

pub use host::{Host, HostClient, HostError};
pub use runner::{ResultStream, RunError, RunHandle, Runner};
pub use secrets::signature::{self, SignatureError, SigningSecret};
pub use server::serve::serve;
pub use server::{RouterOptions, router, router_with};
pub use stream::{ResultSender, stream};
pub use tokio_util::sync::CancellationToken;
