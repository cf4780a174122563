//! The Agent Protocol DSL: a model declares a graph of actions, the runtime decides.
//!
//! The crate is pure: no I/O, no clock, no randomness. Times, ids and token counts are arguments. A service drives it:
//!
//! 1. **Prompt the model.** [`Catalog`](catalog::Catalog) lists the executors of the run,
//!    [`AgentRules`](rules::AgentRules) the permissions of the agent, [`KnownFacts`](rules::KnownFacts) the facts of
//!    the conversation. [`card::system_message`] is the stable system message, [`card::carrier_tool`] the one tool to
//!    offer. [`transcript::replay`] and [`transcript::render`] make the user messages of earlier turns,
//!    [`transcript::instruction`] the last one.
//! 2. **Validate its output.** [`accept()`] classifies the complete output by all of its parts, recovers what rules
//!    allow, and passes it through every gate. [`OutputVerdict::Repair`] runs nothing: [`transcript::notice`] has the
//!    reasons, and [`RepairBudget`](accept::RepairBudget) the remaining attempts. An accepted answer ends the turn; an
//!    accepted graph may name an earlier one whose results answer it
//!    ([`AcceptedDeclaration::repeats`](validate::AcceptedDeclaration::repeats)).
//! 3. **Begin.** [`Graph::new`], then [`step`] with [`GraphEvent::Begin`]. Store durable graphs before
//!    ([`record::store`]), so that [`record::restore`] finds the declaration.
//! 4. **Carry out commands in their order.** [`Note`](Command::Note): show and log. [`Persist`](Command::Persist):
//!    write bodies, then the head, and continue only then. [`Abort`](Command::Abort): ask the executor to end.
//!    [`Execute`](Command::Execute): check bound arguments once more ([`validate::check_bound`]), then call.
//!    [`SpawnChild`](Command::SpawnChild): store the [`assignment`](delegate::assignment), then start a child run with
//!    the [`node_request`](delegate::node_request). [`Ask`](Command::Ask) and [`AskApproval`](Command::AskApproval):
//!    ask the user. [`SetTimer`](Command::SetTimer), [`Resume`](Command::Resume), [`Count`](Command::Count).
//! 5. **Feed events.** `Started`, `Finished`, `Suspended`, `Woken`, `TimerFired`, `Approved`, `Denied`, `Decide`,
//!    `Revise`, `Cancel`, `Deadline`, `BudgetGone`; after a take-over one `Recovered` for each of
//!    [`Graph::open_attempts`]. An event that comes late or twice is counted and changes nothing.
//! 6. **At [`Quiescent`](Command::Quiescent), and only then, observe.** [`transcript::protocol_turn`] is the turn for
//!    the model, [`result::observe::mark_delivered`] returns its new ends, [`record::result_record`] the record for
//!    machines, [`report::render_report`] the report that ends the run. Between these moments, [`project::project`] and
//!    [`project::patch`] show its progress to the user.
//!
//! Three facts of an action are never merged: its state, whether it opens edges (`satisfying`), and whether an
//! observation has shown it (`delivered`).
//!
//! ```
//! use action_graph::catalog::{Catalog, CatalogEntry};
//! use action_graph::action::{Effect, ExecutorKind, Idempotency};
//! use action_graph::ids::GraphId;
//! use action_graph::node::ActionOutput;
//! use action_graph::output::ModelOutput;
//! use action_graph::rules::{AgentRules, KnownFacts};
//! use action_graph::schedule::{ActionOutcome, Why};
//! use action_graph::validate::Context;
//! use action_graph::{Command, Graph, GraphEvent, OutputVerdict, accept, step};
//! use serde_json::json;
//!
//! let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
//! let read = CatalogEntry::new(ExecutorKind::Tool, "read", "Read a file.", schema);
//! let catalog = Catalog::new(vec![read.acting(&[Effect::Read], Idempotency::Safe)]);
//! let rules = AgentRules { enabled: true, ..AgentRules::default() };
//! let known = KnownFacts { remaining_ms: 60_000, ..KnownFacts::default() };
//!
//! let output = ModelOutput::carrier(
//!     r#"{"kind": "act", "message": "I look.", "calls": [
//!         {"id": "look", "type": "tool", "name": "read", "args": {"path": "a.txt"}}]}"#,
//! );
//! let context = Context { catalog: &catalog, known: &known, rules: &rules };
//! let OutputVerdict::Accepted(accepted) = accept(&output, context) else { panic!("refused") };
//! let mut graph = Graph::new(GraphId::from_random(7), *accepted, &rules, &known, Vec::new());
//!
//! let mut events = vec![GraphEvent::Begin];
//! let mut why = None;
//! while let Some(event) = events.pop() {
//!     for command in step(&mut graph, event, 0) {
//!         match command {
//!             Command::Execute(call) => {
//!                 let output = ActionOutput::text("the content");
//!                 let outcome = ActionOutcome::Ok { output, satisfying: true };
//!                 events.push(GraphEvent::Finished { id: call.id, attempt: call.attempt, outcome });
//!             }
//!             Command::Quiescent(reason) => why = Some(reason),
//!             _ => {}
//!         }
//!     }
//! }
//! assert_eq!(why, Some(Why::Finished));
//! ```

#[macro_use]
mod word;

pub mod accept;
pub mod action;
pub mod bind;
pub mod card;
mod carrier;
pub mod catalog;
pub mod code;
pub mod declaration;
pub mod delegate;
pub mod diagnostic;
pub mod fence;
mod fenced;
pub mod graph;
pub mod ids;
pub mod json;
pub mod limits;
mod near;
pub mod node;
pub mod output;
pub mod policy;
pub mod project;
mod read_action;
mod reader;
pub mod record;
mod recover;
pub mod reference;
pub mod report;
pub mod result;
pub mod rules;
pub mod schedule;
pub mod schema;
mod sections;
pub mod textual;
pub mod transcript;
pub mod validate;
mod values;
pub mod words;
pub mod workflow;

pub use accept::{OutputVerdict, accept};
pub use graph::Graph;
pub use schedule::{Command, GraphEvent, step};
