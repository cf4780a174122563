//! Secrets at rest and in requests: sealing, digests, signatures of the Standard Webhooks specification and of other
//! systems.

pub mod digest;
pub mod inbound;
pub mod seal;
pub mod signature;
