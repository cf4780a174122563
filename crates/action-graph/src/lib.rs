//! The Agent Protocol DSL: a model declares a graph of actions, the runtime decides.

pub mod accept;
pub mod action;
pub mod bind;
pub mod card;
mod carrier;
pub mod catalog;
pub mod code;
pub mod declaration;
pub mod diagnostic;
pub mod fence;
mod fenced;
pub mod graph;
pub mod ids;
pub mod json;
pub mod limits;
pub mod node;
pub mod output;
pub mod policy;
pub mod print;
mod read_action;
mod reader;
mod recover;
pub mod reference;
pub mod result;
pub mod rules;
pub mod schedule;
pub mod schema;
mod sections;
pub mod sha256;
pub mod textual;
pub mod validate;
mod values;

pub use accept::{Verdict, accept};
pub use graph::Graph;
pub use schedule::{Command, Event, step};
