//! Model requests and their fit into the model's context window. Decisions only: host calls enter through two
//! traits of [`compact`].

pub mod budget;
pub mod checkpoint;
pub mod compact; // pass over all parts: start here
pub mod conversation; // parts of a request
pub mod estimate;
pub mod fit;
pub mod learned_limit;
pub mod message_validation;
pub mod overflow;
pub mod pictures; // pictures that the gateway stores
pub mod reference_data; // form of input, knowledge, files and skills in requests
pub mod references;
pub mod summary;
pub mod wire; // order of parts on the wire

#[cfg(test)]
mod testing;
