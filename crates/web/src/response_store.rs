//! Responses of live runs, for later requests that refer to them or to their items.
//!
//! In the memory of this process: a request that reaches another replica does not find them, and its client sends
//! the items themselves. The newest responses of a run are stored until its deadline.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::id::RunId;
use serde_json::{Value, json};

/// Maximum bytes of the responses of one run, as JSON. Beyond it, first the inputs of its oldest responses go,
/// then their items.
pub const RUN_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of responses of one run.
const RUN_RESPONSES: usize = 1024;
/// Maximum bytes of all runs. Beyond it, the run with the oldest newest response loses its responses.
const PROCESS_BYTES: usize = 64 * 1024 * 1024;
/// Bytes charged for a response or item in addition to its text.
const ENTRY_BYTES: usize = 256;
/// Maximum number of reported item types of a run.
const REPORTED: usize = 16;

/// The run to which responses belong.
#[derive(Clone, Copy)]
pub struct ResponseOwner {
    run: RunId,
    deadline_at: i64,
    now: i64,
}

impl ResponseOwner {
    /// Times are epoch milliseconds.
    pub fn of(run: RunId, deadline_at: i64, now: i64) -> Self {
        Self {
            run,
            deadline_at,
            now,
        }
    }
}

/// A response with its request.
pub struct AnsweredRequest<'a> {
    pub previous: Option<String>,
    /// Items of the request as JSON. `None`: too large to keep.
    pub input: Option<String>,
    pub response: &'a Value,
    /// Reasoning that returns with the calls of the response.
    pub unsent_reasoning: Option<String>,
}

/// The responses of all runs.
#[derive(Default)]
pub struct ResponseStore(Mutex<StoredRuns>);

#[derive(Default)]
struct StoredRuns {
    runs: BTreeMap<RunId, StoredRun>,
    bytes: usize,
    /// Number of the newest response.
    newest: u64,
    /// Epoch second of the last removal of ended runs.
    tidied: i64,
}

#[derive(Default)]
struct StoredRun {
    deadline_at: i64,
    newest: u64,
    bytes: usize,
    responses: VecDeque<StoredResponse>,
    reported: BTreeSet<String>,
}

struct StoredResponse {
    id: String,
    previous: Option<String>,
    input: Option<String>,
    /// Items as JSON, by id.
    items: Vec<(String, String)>,
}

impl ResponseStore {
    /// Keeps a response for references of later requests.
    pub fn keep(&self, owner: ResponseOwner, answered: AnsweredRequest<'_>) {
        let Some(response) = StoredResponse::of(answered) else {
            return;
        };
        // Larger than a run may have: storing it would evict everything else.
        if response.item_bytes() > RUN_BYTES {
            return;
        }
        let mut stored = self.stored();
        stored.newest += 1;
        let newest = stored.newest;
        let run = stored.run(owner);
        run.newest = newest;
        // The difference is booked, because `evict` below also changes it.
        let before = run.bytes;
        run.bytes += response.bytes();
        run.responses.push_back(response);
        run.evict();
        let after = run.bytes;
        stored.bytes = (stored.bytes + after).saturating_sub(before);
        stored.evict(owner.run);
    }

    /// Replaces the references in `input` by the items of the run's responses. Unknown references stay.
    pub fn resolve(&self, owner: ResponseOwner, input: &mut Value) {
        let items = input.as_array_mut().into_iter().flatten();
        // Without references, which is most requests, the lock is not taken.
        let mut references = items.filter(|item| reference_of(item).is_some()).peekable();
        if references.peek().is_none() {
            return;
        }
        let stored = self.stored();
        let Some(run) = stored.runs.get(&owner.run) else {
            return;
        };
        let items = run.responses.iter().flat_map(|response| &response.items);
        let items: BTreeMap<_, _> = items.map(|(id, item)| (id.as_str(), item)).collect();
        for reference in references {
            let item = reference_of(reference).and_then(|id| items.get(id));
            if let Some(item) = item.and_then(|item| serde_json::from_str(item).ok()) {
                *reference = item;
            }
        }
    }

    /// The items of the conversation up to this response, its own included. `None`: a part of it is not kept.
    pub fn conversation(&self, owner: ResponseOwner, id: &str) -> Option<Vec<Value>> {
        let stored = self.stored();
        let run = stored.runs.get(&owner.run)?;
        let mut turns = Vec::new();
        let mut next = Some(id);
        // A response refers to an older one, so the search continues from there.
        let mut older = run.responses.iter().rev();
        while let Some(id) = next {
            let response = older.find(|response| response.id == id)?;
            turns.push(response);
            next = response.previous.as_deref();
        }
        let mut items = Vec::new();
        for response in turns.into_iter().rev() {
            // A part of the conversation would be worse than an error: the client then sends all items.
            let input: Vec<Value> = serde_json::from_str(response.input.as_deref()?).ok()?;
            items.extend(input);
            let output = response.items.iter();
            items.extend(output.filter_map(|(_, item)| serde_json::from_str(item).ok()));
        }
        Some(items)
    }

    /// Returns true for the first report of an item type of this run.
    pub fn reports(&self, owner: ResponseOwner, kind: &str) -> bool {
        let mut stored = self.stored();
        let reported = &mut stored.run(owner).reported;
        reported.len() < REPORTED && reported.insert(kind.to_owned())
    }

    fn stored(&self) -> MutexGuard<'_, StoredRuns> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoredRuns {
    fn run(&mut self, owner: ResponseOwner) -> &mut StoredRun {
        let second = owner.now.div_euclid(1000);
        // At most once a second: this visits all runs.
        if std::mem::replace(&mut self.tidied, second) != second {
            self.runs.retain(|_, run| run.deadline_at >= owner.now);
            self.bytes = self.runs.values().map(|run| run.bytes).sum();
        }
        let run = self.runs.entry(owner.run).or_insert_with(|| {
            self.bytes += ENTRY_BYTES;
            StoredRun {
                bytes: ENTRY_BYTES,
                ..StoredRun::default()
            }
        });
        run.deadline_at = owner.deadline_at;
        run
    }

    /// Removes responses of other runs until the rest fits.
    fn evict(&mut self, current: RunId) {
        while self.bytes > PROCESS_BYTES {
            // The current run has its own bound, and its newest response must stay.
            let others = self.runs.iter().filter(|(id, _)| **id != current);
            let Some(oldest) = others.min_by_key(|(_, run)| run.newest).map(|(id, _)| *id) else {
                return;
            };
            let removed = self.runs.remove(&oldest);
            self.bytes -= removed.map_or(0, |run| run.bytes.min(self.bytes));
        }
    }
}

impl StoredRun {
    fn evict(&mut self) {
        // Inputs first: items stay available for references.
        let mut responses = self.responses.iter_mut();
        while self.bytes > RUN_BYTES
            && let Some(response) = responses.next()
        {
            let input = response.input.take();
            self.bytes -= input.map_or(0, |input| input.len());
        }
        while self.bytes > RUN_BYTES || self.responses.len() > RUN_RESPONSES {
            let Some(oldest) = self.responses.pop_front() else {
                return;
            };
            self.bytes -= oldest.bytes();
        }
    }
}

impl StoredResponse {
    fn of(answered: AnsweredRequest<'_>) -> Option<Self> {
        let id = answered.response["id"].as_str()?.to_owned();
        let mut unsent = answered.unsent_reasoning;
        let output = answered.response["output"].as_array()?.iter();
        let items = output.filter_map(|item| {
            let id = item["id"].as_str()?.to_owned();
            let mut item = item.clone();
            let is_call = item["call_id"].is_string();
            if let Some(reasoning) = is_call.then(|| unsent.take()).flatten() {
                item["encrypted_content"] = json!(reasoning);
            }
            if item["type"] != "reasoning" {
                // With an id, a provider would look for the item in its own storage.
                item.as_object_mut()?.remove("id");
            }
            Some((id, item.to_string()))
        });
        let items = items.collect();
        Some(Self {
            id,
            previous: answered.previous,
            input: answered.input.filter(|input| input.len() <= RUN_BYTES),
            items,
        })
    }

    fn item_bytes(&self) -> usize {
        let items = self.items.iter();
        let items: usize = items
            .map(|(id, item)| id.len() + item.len() + ENTRY_BYTES)
            .sum();
        let previous = self.previous.as_ref().map_or(0, String::len);
        items + self.id.len() + previous + ENTRY_BYTES
    }

    fn bytes(&self) -> usize {
        self.item_bytes() + self.input.as_ref().map_or(0, String::len)
    }
}

/// Returns the id of an item reference, whose type may be absent.
fn reference_of(item: &Value) -> Option<&str> {
    let is_bare = item["type"].is_null() && item["role"].is_null();
    let is_reference = is_bare || item["type"] == "item_reference";
    item["id"].as_str().filter(|_| is_reference)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn owner(run: u128, now: i64) -> ResponseOwner {
        ResponseOwner::of(RunId(Uuid::from_u128(run)), 10_000, now)
    }

    fn response(n: u64, text: &str) -> Value {
        json!({"id": format!("resp_{n}"), "output": [
            {"id": format!("rs_{n}"), "type": "reasoning", "summary": []},
            {"id": format!("fc_{n}"), "type": "function_call", "call_id": "c", "name": "f", "arguments": text}]})
    }

    fn keep(store: &ResponseStore, owner: ResponseOwner, n: u64, text: &str) {
        let previous = (n > 1).then(|| format!("resp_{}", n - 1));
        let answered = AnsweredRequest {
            previous,
            input: Some(json!([{"role": "user", "content": n}]).to_string()),
            response: &response(n, text),
            unsent_reasoning: Some("sealed".to_owned()),
        };
        store.keep(owner, answered);
    }

    fn resolved(store: &ResponseStore, owner: ResponseOwner, id: &str) -> Value {
        let mut input = json!([{"type": "item_reference", "id": id}, {"id": id}]);
        store.resolve(owner, &mut input);
        assert_eq!(
            input[0]["type"] == "item_reference",
            input[1]["type"].is_null()
        );
        input[0].take()
    }

    #[test]
    fn resolves_references_to_items_of_the_same_run() {
        let (store, one) = (ResponseStore::default(), owner(1, 0));
        keep(&store, one, 1, "{}");
        let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}",
            "encrypted_content": "sealed"});
        assert_eq!(resolved(&store, one, "fc_1"), call);
        assert_eq!(resolved(&store, one, "rs_1"), response(1, "")["output"][0]);
        for (other, id) in [(owner(2, 0), "fc_1"), (one, "fc_2")] {
            assert_eq!(resolved(&store, other, id)["type"], "item_reference");
        }
    }

    #[test]
    fn conversation_has_all_earlier_turns_in_order() {
        let (store, one) = (ResponseStore::default(), owner(1, 0));
        for n in 1..=3 {
            keep(&store, one, n, "{}");
        }
        let items = store.conversation(one, "resp_2").unwrap();
        let contents: Vec<_> = items.iter().map(|item| item["content"].clone()).collect();
        assert_eq!(
            contents,
            [
                json!(1),
                Value::Null,
                Value::Null,
                json!(2),
                Value::Null,
                Value::Null
            ]
        );
        assert!(store.conversation(one, "resp_4").is_none());
        assert!(store.conversation(owner(2, 0), "resp_1").is_none());
    }

    #[test]
    fn memory_of_runs_and_process_is_bounded() {
        let (store, one) = (ResponseStore::default(), owner(1, 0));
        let large = "x".repeat(RUN_BYTES / 3);
        for n in 1..=4 {
            keep(&store, one, n, &large);
        }
        assert_eq!(resolved(&store, one, "fc_1")["type"], "item_reference");
        assert_eq!(resolved(&store, one, "fc_4")["type"], "function_call");
        assert!(store.conversation(one, "resp_4").is_none());
        keep(&store, one, 5, &"x".repeat(RUN_BYTES));
        assert_eq!(resolved(&store, one, "fc_5")["type"], "item_reference");
        for run in 2..40 {
            for n in 1..=2 {
                keep(&store, owner(run, 0), n, &large);
            }
        }
        let stored = store.stored();
        assert!(stored.bytes <= PROCESS_BYTES, "{}", stored.bytes);
        let sum: usize = stored.runs.values().map(|run| run.bytes).sum();
        assert_eq!(stored.bytes, sum);
        drop(stored);
        assert_eq!(resolved(&store, one, "fc_4")["type"], "item_reference");
        assert_eq!(
            resolved(&store, owner(39, 0), "fc_2")["type"],
            "function_call"
        );
        keep(&store, owner(50, 11_000), 1, "{}");
        assert_eq!(store.stored().runs.len(), 1, "runs end at their deadline");
    }

    #[test]
    fn reports_each_item_type_once_per_run() {
        let store = ResponseStore::default();
        let reports = [(1, "a"), (1, "a"), (1, "b"), (2, "a")];
        let reports = reports.map(|(run, kind)| store.reports(owner(run, 0), kind));
        assert_eq!(reports, [true, false, true, true]);
    }
}
