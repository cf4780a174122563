//! Records: the result for machines, and the stored form that survives restarts.

mod result;
mod store;

pub use result::{ActionRecord, Metrics, Next, ResultRecord, result_record};
pub(crate) use store::instance;
pub use store::{Blob, Owner, RestoreError, StoredGraph, StoredNode, StoredOutput, restore, store};

use crate::graph::{Graph, Millis};
use crate::schedule::{Event, step};

/// Applies journaled events to a graph as it was accepted: the same events give the same graph.
pub fn replay(mut graph: Graph, journal: impl IntoIterator<Item = (Millis, Event)>) -> Graph {
    for (now, event) in journal {
        step(&mut graph, event, now);
    }
    graph
}
