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
pub mod ids;
pub mod json;
pub mod limits;
pub mod output;
pub mod policy;
pub mod print;
mod read_action;
mod reader;
mod recover;
pub mod reference;
pub mod rules;
pub mod schema;
mod sections;
pub mod sha256;
pub mod textual;
pub mod validate;

pub use accept::{Verdict, accept};
