//! Secrets at rest and in requests: sealing, digests, and signatures of the Standard Webhooks specification.

pub mod digest;
pub mod seal;
pub mod signature;
