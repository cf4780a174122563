//! What a model is asked with, and how it is kept within the model's window. Decisions alone: what asks the host
//! comes in behind two traits of [`compact`].

pub mod budget;
pub mod checkpoint;
pub mod compact; // the pass that uses them all: start here
pub mod conversation; // the parts of a request
pub mod estimate;
pub mod fit;
pub mod legal;
pub mod overflow;
pub mod pictures; // those that the gateway keeps
pub mod reference_data; // how input, knowledge, files and skills are put to a model
pub mod references;
pub mod summary;
pub mod wire; // the order in which a model gets them

#[cfg(test)]
mod testing;
