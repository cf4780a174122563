//! Everything that leaves the gateway over HTTP. Nothing else constructs a client.

pub mod egress;
pub mod runner;
pub mod signature;

pub use reqwest::{RequestBuilder, Response};
