//! Everything that leaves the gateway over HTTP. Nothing else constructs a client.

pub mod artifact;
pub mod egress;
pub mod model;
pub mod otlp;
pub mod redact;
pub mod remote_knowledge;
pub mod runner;
pub mod signature;
pub mod tool;
pub mod upstream;

pub use reqwest::{RequestBuilder, Response};
