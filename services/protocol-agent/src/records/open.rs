//! Opening of graphs. A graph is stored before its first action.

use action_graph::declaration::DeclarationSource;
use action_graph::diagnostic::Diagnostic;
use action_graph::graph::{Graph, Millis};
use action_graph::record::GraphOwner;
use serde_json::json;

use crate::failpoint::reach;
use crate::records::document::named;
use crate::records::error::RecordsError;
use crate::records::head::GraphHead;
use crate::records::host::{RecordsHost, with_retries};
use crate::records::index::{Index, OpenEntry};
use crate::records::save::{DrivenGraph, head_key};
use crate::records::{GraphRecords, OpenOutcome};

/// Name of the body with the model's output.
const SOURCE: &str = "source";
/// Maximum bytes of the model's output that are stored for inspection.
const RAW: usize = 64 << 10;

impl<H: RecordsHost> GraphRecords<H> {
    /// Stores an accepted graph: the model's output, then the index, then its head. `ordinal`: number of the
    /// declaration in this run; a repeated one returns its existing graph.
    pub async fn open(
        &mut self,
        ordinal: u32,
        graph: &Graph,
        source: &DeclarationSource,
        raw: &str,
        diagnostics: &[Diagnostic],
        now: Millis,
    ) -> Result<OpenOutcome, RecordsError> {
        self.needs_storage()?;
        let id = &graph.id;
        if let Some(made) = self.archive.index.value.made_by(&self.me.run, ordinal) {
            return Ok(OpenOutcome::Exists(made.clone()));
        }
        let end = raw.floor_char_boundary(RAW);
        let body = json!({
            "raw": &raw[..end],
            "bytes": raw.len(),
            "source": source,
            "diagnostics": diagnostics,
            "accepted_sha256": graph.info.accepted_sha256,
        });
        let mut bytes = self.driven.bodies.write_all(id, &[(SOURCE, &body)]).await?;
        reach("open.raw").await;
        let open = OpenEntry {
            id: id.clone(),
            run: self.me.run.clone(),
            at: now,
        };
        // Index before head: the next run finds and removes an entry without a head, and its bodies.
        let add = |index: &mut Index| index.open(open.clone(), ordinal);
        self.archive.index.change(&self.host, add).await?;
        reach("open.index").await;
        let owner = GraphOwner {
            run: self.me.run.clone(),
            attempt: self.me.attempt,
            epoch: 1,
        };
        let conversation = self.me.conversation();
        let change = GraphHead::first(graph, &conversation, owner, SOURCE.to_owned(), now)?;
        let bodies: Vec<_> = change
            .bodies
            .iter()
            .map(|body| (body.key.as_str(), &body.content))
            .collect();
        bytes += self.driven.bodies.write_all(id, &bodies).await?;
        let mut head = change.head;
        head.bytes = bytes;
        let value = named(&conversation, &head);
        // Unconditional: the random id guarantees that the key is unused.
        let key = head_key(id);
        let version = with_retries(|| self.host.state_put(&key, value.clone(), None)).await?;
        reach("open.head").await;
        let held = DrivenGraph {
            written: head.names(),
            head,
            version: Some(version),
        };
        self.driven.held.insert(id.clone(), held);
        Ok(OpenOutcome::New)
    }
}
