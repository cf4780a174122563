//! Acknowledgements that clients and runner received, recorded outside the gateway for comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use serde_json::{Value, json};
use uuid::Uuid;

use super::deferred_results::PendingResults;
use crate::support::client::Client;
use crate::support::runner::StubRunner;

/// One conversation from the client's view.
#[derive(Clone, Debug)]
pub struct ClientConversation {
    pub conversation: String,
    /// The bot, which selects the agent. Empty for the agent with policy `concurrent`.
    pub bot: &'static str,
    pub posts: BTreeMap<String, Post>,
    /// Streamed events by run, over all connections.
    pub seen: BTreeMap<String, Vec<String>>,
    /// Runs, in order, whose end the client saw before it posted the next event.
    pub chain: Vec<String>,
    /// Events pulled by the runner.
    pub pulled: Vec<String>,
    /// Runs whose cancel was acknowledged.
    pub cancelled: BTreeSet<String>,
    /// Runs whose runner answered 202.
    pub later: Vec<PendingResults>,
}

/// An event that the client sends until it is acknowledged.
#[derive(Clone, Debug)]
pub struct Post {
    pub event: Value,
    /// Run id of the first acknowledgement.
    pub acknowledged_run_id: Option<String>,
    /// The complete response of the reconciliation.
    pub answer: Value,
}

impl ClientConversation {
    pub fn new(bot: &'static str) -> Self {
        Self {
            conversation: Uuid::new_v4().to_string(),
            bot,
            posts: BTreeMap::new(),
            seen: BTreeMap::new(),
            chain: Vec::new(),
            pulled: Vec::new(),
            cancelled: BTreeSet::new(),
            later: Vec::new(),
        }
    }

    /// A new event of this conversation, recorded before it is sent. Its kind selects the script of the runner.
    pub fn event(&mut self, kind: &str) -> Value {
        let event_id = format!("{kind}-{}", Uuid::new_v4());
        let mut event = json!({
            "event_type": "message.received",
            "event_id": event_id,
            "conversation": {"conversation_id": self.conversation},
            "actor": {"actor_type": "user", "actor_id": "u-1"},
            "input": {"text": "hello"},
        });
        if !self.bot.is_empty() {
            event["bot_id"] = json!(self.bot);
        }
        let post = Post {
            event: event.clone(),
            acknowledged_run_id: None,
            answer: Value::Null,
        };
        self.posts.insert(event_id, post);
        event
    }

    /// Records an acknowledgement. All acknowledgements of an event must be equal.
    pub fn acknowledged(&mut self, event: &Value, run_id: &str) {
        let post = self.posts.get_mut(id_of(event)).unwrap();
        let acknowledged_run_id = post
            .acknowledged_run_id
            .get_or_insert_with(|| run_id.to_owned());
        assert_eq!(acknowledged_run_id, run_id, "one key has one run: {event}");
    }
}

pub fn id_of(event: &Value) -> &str {
    event["event_id"].as_str().unwrap()
}

/// A conversation shared by several clients.
pub struct SharedConversation(Mutex<ClientConversation>);

impl SharedConversation {
    pub fn new(bot: &'static str) -> Self {
        Self(Mutex::new(ClientConversation::new(bot)))
    }

    pub fn lock(&self) -> MutexGuard<'_, ClientConversation> {
        self.0.lock().unwrap()
    }

    pub fn into_inner(self) -> ClientConversation {
        self.0.into_inner().unwrap()
    }
}

/// Run requests by run id.
#[derive(Default)]
pub struct RunnerRequests {
    posts: BTreeMap<String, Vec<(String, Value)>>,
    /// Host API members of runs whose runner answered 202.
    hosts: BTreeMap<String, Value>,
}

impl RunnerRequests {
    /// Takes the requests recorded since the last call.
    pub fn take(&mut self, runner: &StubRunner) {
        for request in runner.take_requests() {
            if !request.is_run() {
                continue;
            }
            assert!(request.is_signed(), "{request:?}");
            let [run_id, attempt] = ["runnel-run-id", "runnel-attempt"]
                .map(|name| request.header(name).unwrap().to_owned());
            let mut run_request = request.json();
            let state = run_request["context"]["state"].take();
            self.hosts
                .insert(run_id.clone(), run_request["host"].take());
            self.posts.entry(run_id).or_default().push((attempt, state));
        }
    }

    /// Appends the results of runs answered with 202 whose client saw the gateway die first.
    pub async fn append_deferred_results(&self, client: &Client, talk: &mut ClientConversation) {
        for (event_id, post) in &talk.posts {
            let run_id = post.answer["run_id"].as_str().unwrap_or_default();
            if !event_id.starts_with("later") {
                continue;
            }
            let appended = talk.later.iter().position(|later| later.run_id == run_id);
            let appended = match (appended, self.hosts.get(run_id)) {
                (Some(index), _) => index,
                (None, Some(host)) => {
                    let later = PendingResults::new(run_id, event_id, host);
                    talk.later.push(later);
                    talk.later.len() - 1
                }
                (None, None) => continue,
            };
            // The next check tries again: a busy database refuses some appends.
            let _ = talk.later[appended].append_rest(client).await;
        }
    }

    /// Number of run requests for this run.
    pub fn posts(&self, run_id: &str) -> usize {
        self.posts.get(run_id).map_or(0, Vec::len)
    }

    /// State in the first request for this run.
    pub fn state(&self, run_id: &str) -> Option<&Value> {
        self.posts.get(run_id)?.first().map(|(_, state)| state)
    }

    /// Asserts that no attempt of a run was posted twice.
    pub fn assert_no_duplicate_posts(&self) {
        for (run_id, posts) in &self.posts {
            let attempts: BTreeSet<_> = posts.iter().map(|(attempt, _)| attempt).collect();
            assert_eq!(attempts.len(), posts.len(), "{run_id} was posted twice");
        }
    }
}
