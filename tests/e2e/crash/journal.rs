//! What clients and the runner were told: kept outside of the gateway, so that it can be held against it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use serde_json::{Value, json};
use uuid::Uuid;

use super::later::Later;
use crate::support::client::Client;
use crate::support::runner::StubRunner;

/// One conversation as its client knows it.
#[derive(Clone, Debug)]
pub struct Talk {
    pub conversation: String,
    /// The agent that answers here, by its bot; empty: the one that runs everything at once.
    pub bot: &'static str,
    pub posts: BTreeMap<String, Post>,
    /// By run: the events that its client has read, over all its connections.
    pub seen: BTreeMap<String, Vec<String>>,
    /// Runs whose end was seen before the next event was posted, in order.
    pub chain: Vec<String>,
    /// Events that the runner has pulled.
    pub pulled: Vec<String>,
    /// Runs whose cancel was acknowledged.
    pub cancelled: BTreeSet<String>,
    /// Runs whose runner answered 202.
    pub later: Vec<Later>,
}

/// An event that was sent, and sent again until it was acknowledged.
#[derive(Clone, Debug)]
pub struct Post {
    pub event: Value,
    /// The run of the first acknowledgement.
    pub told: Option<String>,
    /// The answer, once it was asked for in full.
    pub answer: Value,
}

impl Talk {
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

    /// An event of this conversation, noted before it is sent. Its kind chooses the runner's script.
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
            told: None,
            answer: Value::Null,
        };
        self.posts.insert(event_id, post);
        event
    }

    /// An acknowledgement. Whoever is told twice is told the same.
    pub fn acknowledged(&mut self, event: &Value, run_id: &str) {
        let post = self.posts.get_mut(id_of(event)).unwrap();
        let told = post.told.get_or_insert_with(|| run_id.to_owned());
        assert_eq!(told, run_id, "one key has one run: {event}");
    }
}

pub fn id_of(event: &Value) -> &str {
    event["event_id"].as_str().unwrap()
}

/// A conversation that several clients speak in.
pub struct Shared(Mutex<Talk>);

impl Shared {
    pub fn new(bot: &'static str) -> Self {
        Self(Mutex::new(Talk::new(bot)))
    }

    pub fn lock(&self) -> MutexGuard<'_, Talk> {
        self.0.lock().unwrap()
    }

    pub fn into_inner(self) -> Talk {
        self.0.into_inner().unwrap()
    }
}

/// What the runner was asked, by run.
#[derive(Default)]
pub struct Asked {
    posts: BTreeMap<String, Vec<(String, Value)>>,
    /// Where the runner is heard that answered 202.
    hosts: BTreeMap<String, Value>,
}

impl Asked {
    /// Takes what the runner has recorded since the last time.
    pub fn take(&mut self, runner: &StubRunner) {
        for request in runner.take_requests() {
            if !request.is_run() {
                continue;
            }
            assert!(request.is_signed(), "{request:?}");
            let [run_id, attempt] = ["runnel-run-id", "runnel-attempt"]
                .map(|name| request.header(name).unwrap().to_owned());
            let mut asked = request.json();
            let state = asked["context"]["state"].take();
            self.hosts.insert(run_id.clone(), asked["host"].take());
            self.posts.entry(run_id).or_default().push((attempt, state));
        }
    }

    /// The runner's part in runs that it has answered with 202, where their client saw the gateway die before it.
    pub async fn come_back(&self, client: &Client, talk: &mut Talk) {
        for (event_id, post) in &talk.posts {
            let run_id = post.answer["run_id"].as_str().unwrap_or_default();
            let is_new = !talk.later.iter().any(|later| later.run_id == run_id);
            if event_id.starts_with("later")
                && is_new
                && let Some(host) = self.hosts.get(run_id)
            {
                let mut later = Later::new(run_id, event_id, host);
                // Who cannot say it now is looked for no more.
                let _ = later.go_on(client).await;
                talk.later.push(later);
            }
        }
    }

    /// How often the runner was asked to run this.
    pub fn posts(&self, run_id: &str) -> usize {
        self.posts.get(run_id).map_or(0, Vec::len)
    }

    /// The state that the runner was told with its first attempt.
    pub fn state(&self, run_id: &str) -> Option<&Value> {
        self.posts.get(run_id)?.first().map(|(_, state)| state)
    }

    /// No attempt of any run was posted twice.
    pub fn assert_at_most_once(&self) {
        for (run_id, asked) in &self.posts {
            let attempts: BTreeSet<_> = asked.iter().map(|(attempt, _)| attempt).collect();
            assert_eq!(attempts.len(), asked.len(), "{run_id} was posted twice");
        }
    }
}
