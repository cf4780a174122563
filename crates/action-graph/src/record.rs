//! Records: the result for machines, and the stored form that survives restarts.

mod result;
mod store;

pub use result::{ActionRecord, Metrics, NextStep, ResultRecord, result_record};
pub(crate) use store::instance;
pub use store::{
    GraphOwner, RecordBody, RestoreError, StoredGraph, StoredNode, StoredOutput, restore, store,
};

use crate::graph::{Graph, Millis};
use crate::schedule::{GraphEvent, step};

/// Applies journaled events to a graph as it was accepted: the same events give the same graph.
pub fn replay(mut graph: Graph, journal: impl IntoIterator<Item = (Millis, GraphEvent)>) -> Graph {
    // Commands are dropped: they were carried out when the journal was written.
    for (now, event) in journal {
        step(&mut graph, event, now);
    }
    graph
}
