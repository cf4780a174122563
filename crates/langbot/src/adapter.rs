//! Adapters of other event sources: they convert requests to event envelopes.

pub mod pipeline;
