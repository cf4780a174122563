//! Everything that leaves the gateway over HTTP. Nothing else constructs a client.

pub mod artifact;
pub mod egress;
pub mod redact;
pub mod runner;
pub mod signature;
pub mod upstream;

pub use reqwest::{RequestBuilder, Response};
