//! Records: the result for machines, and the stored form that survives restarts.

mod result;
mod store;

pub use result::{ActionRecord, Metrics, NextStep, ResultRecord, result_record};
pub(crate) use store::instance;
pub use store::{RecordBody, RestoreError, StoredGraph, restore, store};
