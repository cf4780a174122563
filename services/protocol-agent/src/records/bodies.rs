//! Bodies of graphs in the agent's storage: written once, before the head that names them.
//!
//! A body is a JSON line with its conversation and graph, followed by its content. Content beyond 8 MiB is stored in
//! additional parts.

use std::collections::BTreeMap;

use action_graph::ids::GraphId;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use secrets::digest::sha256_hex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::records::document::VERSION;
use crate::records::error::RecordsError;
use crate::records::host::{RecordsHost, with_retries};

/// Maximum bytes of one part. The gateway's limit is 10 MiB.
const PART: usize = 8 << 20;
/// Maximum parts of one body. JSON escapes enlarge an output of 10 MiB up to six times.
const PARTS: usize = 8;
/// Concurrent reads or writes. The gateway admits four uploads of a run.
const AT_ONCE: usize = 3;
/// Hex digits of the conversation's hash in a key prefix.
const HASH: usize = 32;

/// First line of a body.
#[derive(Serialize, Deserialize)]
struct BodyHeader {
    version: u16,
    conversation: String,
    graph: String,
    parts: usize,
    bytes: usize,
}

/// Bodies of one conversation.
#[derive(Clone, Debug)]
pub(super) struct Bodies<H> {
    host: H,
    conversation: String,
    prefix: String,
}

impl<H: RecordsHost> Bodies<H> {
    pub(super) fn new(host: H, conversation: &str) -> Self {
        let hash = sha256_hex(conversation);
        Self {
            host,
            conversation: conversation.to_owned(),
            prefix: format!("apd/{}", &hash[..HASH]),
        }
    }

    /// Storage key of a body.
    fn key(&self, graph: &GraphId, name: &str) -> String {
        // Ids of instances contain brackets, which keys may not.
        let name = name.replace('[', ":").replace(']', "");
        format!("{}/{graph}/{name}", self.prefix)
    }

    /// Writes bodies and returns their total size in bytes.
    pub(super) async fn write_all(
        &self,
        graph: &GraphId,
        bodies: &[(&str, &Value)],
    ) -> Result<u64, RecordsError> {
        // Boxed and collected: the compiler cannot prove that a lazy iterator of borrowing futures is `Send`.
        let writes: Vec<_> = bodies
            .iter()
            .map(|(name, content)| self.write(graph, name, content).boxed())
            .collect();
        let mut writes = stream::iter(writes).buffer_unordered(AT_ONCE);
        let mut sum = 0;
        while let Some(bytes) = writes.try_next().await? {
            sum += bytes;
        }
        Ok(sum)
    }

    /// Writes a body in parts.
    async fn write(
        &self,
        graph: &GraphId,
        name: &str,
        content: &Value,
    ) -> Result<u64, RecordsError> {
        let content = content.to_string().into_bytes();
        let parts = content.len().div_ceil(PART).max(1);
        if parts > PARTS {
            let bound = PARTS * PART;
            return Err(RecordsError::Full {
                what: "a stored result",
                bound,
            });
        }
        let line = BodyHeader {
            version: VERSION,
            conversation: self.conversation.clone(),
            graph: graph.0.clone(),
            parts,
            bytes: content.len(),
        };
        let key = self.key(graph, name);
        let mut chunks = content.chunks(PART);
        let first = chunks.next().unwrap_or_default();
        // The first part is last: with it, the body becomes visible and is complete.
        for (at, chunk) in chunks.enumerate() {
            let key = format!("{key}.p{}", at + 1);
            with_retries(|| self.host.blob_put(&key, chunk.to_vec())).await?;
        }
        let mut head = serde_json::to_vec(&line).unwrap_or_default();
        head.push(b'\n');
        head.extend_from_slice(first);
        with_retries(|| self.host.blob_put(&key, head.clone())).await?;
        Ok(content.len() as u64)
    }

    /// Reads a body. Damaged bodies, and those of another conversation or graph, count as absent.
    pub(super) async fn read(
        &self,
        graph: &GraphId,
        name: &str,
    ) -> Result<Option<Value>, RecordsError> {
        let key = self.key(graph, name);
        let Some(bytes) = with_retries(|| self.host.blob_get(&key)).await? else {
            return Ok(None);
        };
        let Some((line, first)) = self.opened(graph, &bytes) else {
            return Ok(None);
        };
        let mut content = first.to_vec();
        for at in 1..line.parts {
            let key = format!("{key}.p{at}");
            let Some(part) = with_retries(|| self.host.blob_get(&key)).await? else {
                return Ok(None);
            };
            content.extend_from_slice(&part);
        }
        // Another length means that a write was interrupted, or mixed with parts of an earlier version.
        let is_complete = content.len() == line.bytes;
        let content = is_complete.then(|| serde_json::from_slice(&content).ok());
        Ok(content.flatten())
    }

    fn opened<'a>(&self, graph: &GraphId, bytes: &'a [u8]) -> Option<(BodyHeader, &'a [u8])> {
        let end = bytes.iter().position(|&byte| byte == b'\n')?;
        let (line, content) = bytes.split_at(end);
        let line: BodyHeader = serde_json::from_slice(line).ok()?;
        let is_ours = line.version == VERSION
            && line.conversation == self.conversation
            && line.graph == graph.0
            && line.parts <= PARTS;
        is_ours.then_some((line, content.get(1..)?))
    }

    /// Reads bodies by name. Absent ones are omitted.
    pub(super) async fn read_all(
        &self,
        graph: &GraphId,
        names: impl IntoIterator<Item = String>,
    ) -> Result<BTreeMap<String, Value>, RecordsError> {
        let read = |name: String| async move {
            let content = self.read(graph, &name).await?;
            Ok::<_, RecordsError>((name, content))
        };
        let reads: Vec<_> = names.into_iter().map(|name| read(name).boxed()).collect();
        let mut reads = stream::iter(reads).buffer_unordered(AT_ONCE);
        let mut found = BTreeMap::new();
        while let Some((name, content)) = reads.try_next().await? {
            found.extend(content.map(|content| (name, content)));
        }
        Ok(found)
    }

    /// Names of up to 100 bodies of a graph with this prefix.
    pub(super) async fn names(
        &self,
        graph: &GraphId,
        beginning: &str,
    ) -> Result<Vec<String>, RecordsError> {
        let prefix = self.key(graph, beginning);
        let page = with_retries(|| self.host.blob_list(&prefix, None)).await?;
        let all = self.key(graph, "");
        let names = page.keys.iter().filter_map(|key| key.strip_prefix(&all));
        Ok(names.map(str::to_owned).collect())
    }

    /// Removes up to 100 bodies of a graph; true if none remains.
    pub(super) async fn remove(&self, graph: &GraphId) -> Result<bool, RecordsError> {
        let prefix = self.key(graph, "");
        let page = with_retries(|| self.host.blob_list(&prefix, None)).await?;
        for key in &page.keys {
            self.host.blob_delete(key).await?;
        }
        Ok(!page.has_more)
    }
}
