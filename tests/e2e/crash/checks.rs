//! Invariants of a conversation and its runs after any crash: I1–I4, I11–I13.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::deferred_results::PendingResults;
use super::journal::{ClientConversation, Post, RunnerRequests};
use super::load::deltas_of;
use crate::support::client::{Client, send, stream};
use crate::support::ledger::Ledger;
use crate::support::runner::StubRunner;
use crate::support::{until, within};

/// Maximum time from a restart to the end of a run: a lease, a sweep, the wait for undispatched runs, and a slow
/// machine.
const MAX_RUN_TIME: Duration = Duration::from_secs(30);
/// Number of conversations checked concurrently.
const CONCURRENT_CHECKS: usize = 6;

/// All recorded conversations, until they are checked.
#[derive(Default)]
pub struct ConversationLog {
    open: Vec<(ClientConversation, Instant)>,
    pub runner_requests: RunnerRequests,
    pub figures: CrashStatistics,
    /// Run ids of checked events.
    run_ids: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
pub struct CrashStatistics {
    pub conversations: usize,
    pub events_posted: usize,
    /// Events that were stored without an acknowledgement to the client; the retry was a replay.
    pub stored_unacknowledged: usize,
    pub runs: usize,
    pub ledger_events: usize,
    pub seen_events: usize,
    /// Counts by status and, unless completed, error code.
    pub endings: BTreeMap<String, usize>,
    pub never_posted: usize,
    pub steered: usize,
    pub pulled: usize,
}

impl ConversationLog {
    /// Adds conversations recorded before a crash. Posts each event again: an acknowledged event must return the
    /// same run, and no event gets a second run.
    pub async fn reconcile(&mut self, client: &Client, talks: Vec<ClientConversation>) {
        let reconciled: Vec<_> = futures_util::stream::iter(talks)
            .map(|talk| reconcile(client, talk))
            .buffer_unordered(CONCURRENT_CHECKS)
            .collect()
            .await;
        for (talk, untold) in reconciled {
            self.figures.stored_unacknowledged += untold;
            self.figures.events_posted += talk.posts.len();
            self.open.push((talk, Instant::now()));
        }
    }

    /// Checks each conversation whose runs have ended. Fails if a run exceeds the time limit.
    pub async fn check_ended(&mut self, client: &Client, runner: &StubRunner) {
        let looked: Vec<_> = futures_util::stream::iter(std::mem::take(&mut self.open))
            .map(|(talk, since)| async move {
                let mut runs = runs_of(client, &talk).await;
                if runs.iter().all(has_ended) {
                    // The end of a run may have promoted the next one between two page reads, so read again.
                    runs = runs_of(client, &talk).await;
                }
                let stuck = !runs.iter().all(has_ended) && since.elapsed() > MAX_RUN_TIME;
                assert!(
                    !stuck,
                    "no progress for {MAX_RUN_TIME:?}: {}",
                    dump(client, &runs).await
                );
                (talk, since, runs)
            })
            .buffer_unordered(CONCURRENT_CHECKS)
            .collect()
            .await;
        // Take the requests last, so that they include the requests of all ended runs.
        self.runner_requests.take(runner);
        let (ended, open): (Vec<_>, Vec<_>) = looked
            .into_iter()
            .partition(|(_, _, runs)| runs.iter().all(has_ended));
        for (mut talk, since, _) in open {
            self.runner_requests
                .append_deferred_results(client, &mut talk)
                .await;
            self.open.push((talk, since));
        }
        let runner_requests = &self.runner_requests;
        let checked: Vec<_> = futures_util::stream::iter(ended)
            .map(|(talk, _, runs)| async move {
                let check = ConversationCheck {
                    client,
                    talk: &talk,
                    runner_requests,
                };
                (check.all(&runs).await, runs)
            })
            .buffer_unordered(CONCURRENT_CHECKS)
            .collect()
            .await;
        for (checked, runs) in checked {
            self.figures.add(&checked, &runs);
            for run in &runs {
                let (event, run) = (text(run, "event_id"), text(run, "run_id"));
                let twice = self.run_ids.insert(event.to_owned(), run.to_owned());
                assert_eq!(twice, None, "{event} has two runs");
            }
        }
    }

    /// Waits until all runs have ended, and checks the rest of the conversations.
    pub async fn close(&mut self, client: &Client, runner: &StubRunner) {
        until("every run to end", async || {
            self.check_ended(client, runner).await;
            self.open.is_empty()
        })
        .await;
        let mut stored = BTreeMap::new();
        let mut cursor = String::new();
        loop {
            let page = client
                .get(&format!("/v1/runs?limit=100{cursor}"))
                .await
                .body;
            for run in page["items"].as_array().unwrap() {
                assert!(has_ended(run), "{run}");
                stored.insert(
                    text(run, "event_id").to_owned(),
                    text(run, "run_id").to_owned(),
                );
            }
            let Some(next) = page["next_cursor"].as_str() else {
                break;
            };
            cursor = format!("&cursor={next}");
        }
        assert_eq!(
            stored, self.run_ids,
            "the ledger contains exactly the acknowledged runs"
        );
        self.runner_requests.take(runner);
        self.runner_requests.assert_no_duplicate_posts();
    }
}

impl CrashStatistics {
    fn add(&mut self, checked: &CheckedConversation, runs: &[Value]) {
        self.conversations += 1;
        self.runs += runs.len();
        self.ledger_events += checked.events;
        self.seen_events += checked.seen;
        self.never_posted += checked.never_posted;
        self.steered += checked.steered;
        self.pulled += checked.pulled;
        for run in runs {
            *self.endings.entry(ending(run)).or_default() += 1;
        }
    }
}

/// Posts all events again. Returns the number of stored events without an acknowledgement.
async fn reconcile(client: &Client, mut talk: ClientConversation) -> (ClientConversation, usize) {
    let mut untold = 0;
    for post in talk.posts.values_mut() {
        let taken = async {
            loop {
                let answer = send(client.posting(&post.event)).await.unwrap();
                if answer.status < 500 {
                    break answer;
                }
            }
        };
        let answer = within("the event to be taken", taken).await;
        let run_id = answer.run_id();
        match &post.acknowledged_run_id {
            Some(acknowledged) => {
                assert!(
                    answer.is_replay(),
                    "{acknowledged} was acknowledged and is gone"
                );
                assert_eq!(*acknowledged, run_id, "{}", answer.body);
            }
            None => untold += usize::from(answer.is_replay()),
        }
        post.answer = answer.body;
    }
    for later in &mut talk.later {
        let delivery = async { while later.append_rest(client).await.is_err() {} };
        within("the results to be accepted", delivery).await;
    }
    (talk, untold)
}

async fn runs_of(client: &Client, talk: &ClientConversation) -> Vec<Value> {
    let path = format!("/v1/runs?limit=100&conversation_id={}", talk.conversation);
    let answer = client.get(&path).await.expect(200);
    answer.body["items"].as_array().unwrap().clone()
}

/// Details of runs that do not end.
async fn dump(client: &Client, runs: &[Value]) -> String {
    let mut details = Vec::new();
    for run in runs {
        let ledger = client.ledger(text(run, "run_id")).await;
        let (count, last) = (ledger.0.len(), ledger.last());
        details.push(format!("{run}\n  {count} events, the last: {last}"));
    }
    details.join("\n")
}

fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object[name]
        .as_str()
        .unwrap_or_else(|| panic!("{name}: {object}"))
}

fn has_ended(run: &Value) -> bool {
    ["completed", "failed", "cancelled", "timeout"].contains(&text(run, "status"))
}

fn ending(run: &Value) -> String {
    let code = run["error"]["code"].as_str().unwrap_or_default();
    format!("{} {code}", text(run, "status"))
        .trim_end()
        .to_owned()
}

/// A conversation whose runs have ended.
struct ConversationCheck<'a> {
    client: &'a Client,
    talk: &'a ClientConversation,
    runner_requests: &'a RunnerRequests,
}

#[derive(Default)]
struct CheckedConversation {
    events: usize,
    seen: usize,
    never_posted: usize,
    steered: usize,
    pulled: usize,
}

impl ConversationCheck<'_> {
    async fn all(&self, runs: &[Value]) -> CheckedConversation {
        let by_event: BTreeMap<_, _> = runs
            .iter()
            .map(|run| (text(run, "event_id"), run))
            .collect();
        assert_eq!(
            by_event.len(),
            runs.len(),
            "an event has two runs: {runs:?}"
        );
        let mut checked = CheckedConversation::default();
        for (event_id, post) in &self.talk.posts {
            self.fate(
                event_id,
                post,
                by_event.get(event_id.as_str()).copied(),
                &mut checked,
            )
            .await;
        }
        for event_id in by_event.keys() {
            assert!(
                self.talk.posts.contains_key(*event_id),
                "{event_id} was never posted"
            );
        }
        let mut ledgers = BTreeMap::new();
        for run in runs {
            let ledger = self.run(run).await;
            checked.events += ledger.0.len();
            checked.never_posted +=
                usize::from(self.runner_requests.posts(text(run, "run_id")) == 0);
            ledgers.insert(text(run, "run_id"), ledger);
        }
        checked.seen = self.talk.seen.values().map(Vec::len).sum();
        self.state(&ledgers);
        self.transcript(runs).await;
        checked
    }

    /// Each event either has its own run or was pulled into another one.
    async fn fate(
        &self,
        event_id: &str,
        post: &Post,
        own: Option<&Value>,
        checked: &mut CheckedConversation,
    ) {
        let answered = text(&post.answer, "run_id");
        if post.answer["steered"] != true {
            let own = own.unwrap_or_else(|| panic!("{event_id} has no run"));
            assert_eq!(text(own, "run_id"), answered);
            return;
        }
        checked.steered += 1;
        let event = self
            .client
            .get(&format!("/v1/events/{event_id}"))
            .await
            .body;
        let status = &event["metadata"]["steering"]["status"];
        let pulls = self
            .talk
            .pulled
            .iter()
            .filter(|pulled| *pulled == event_id)
            .count();
        assert!(pulls <= 1, "{event_id} was pulled {pulls} times");
        match text(&json!({ "status": status }), "status") {
            "injected" => {
                checked.pulled += 1;
                assert!(
                    own.is_none(),
                    "{event_id} was pulled and has a run: {own:?}"
                );
            }
            "dropped" => {
                assert_eq!(pulls, 0, "{event_id} was pulled and dropped");
                assert!(own.is_some(), "{event_id} was dropped and has no run");
            }
            other => panic!("{event_id} is {other} for a run that has ended: {event}"),
        }
    }

    /// Checks one run: dense ledger, one terminal, all streamed events included, posted at most once, rejections
    /// counted.
    async fn run(&self, run: &Value) -> Ledger {
        let run_id = text(run, "run_id");
        let ledger = self.client.ledger(run_id).await;
        ledger.assert_valid(run_id);
        assert!(ledger.is_ended(), "{run} has no terminal: {ledger:?}");
        assert_eq!(run["last_sequence"], ledger.0.len(), "{run}");
        // An accepted cancel overrides a later terminal of the runner.
        let was_cancelled = run["status"] == "cancelled";
        let completed = run["status"] == "completed";
        let last = ledger.types().pop().unwrap();
        let says_completed = last == "run.completed";
        assert!(
            says_completed == completed || was_cancelled,
            "{run}: {last}"
        );

        let none = Vec::new();
        let seen = self.talk.seen.get(run_id).unwrap_or(&none);
        let begin = seen.first().map_or(0, |event| sequence(event) - 1);
        let seen_there = ledger.0.get(begin..begin + seen.len());
        assert_eq!(seen_there, Some(&seen[..]), "{run_id}: not in {ledger:?}");
        let resumed = self.resume(run_id, begin + seen.len()).await;
        assert_eq!(
            resumed,
            ledger.0[begin + seen.len()..],
            "{run_id} has different events"
        );

        if self.talk.cancelled.contains(run_id) {
            assert!(run["cancel_requested_at"].is_i64(), "forgotten: {run}");
        }
        let posts = self.runner_requests.posts(run_id);
        assert!(posts <= 1, "the runner received {posts} posts of {run}");
        let later = self.talk.later.iter().find(|later| later.run_id == run_id);
        let is_acknowledged = later.is_some_and(PendingResults::is_acknowledged);
        match ending(run).as_str() {
            "completed" => self.check_completed(run, &ledger).await,
            // Only a dispatched run has an unknown start.
            "failed host.orphaned" => {
                assert!(run["dispatch_attempts"] != 0, "{run}");
                assert!(!is_acknowledged, "its runner continues: {run}");
            }
            "cancelled cancelled" | "failed host.internal" => {}
            other => panic!("{other}: {run}"),
        }
        ledger
    }

    /// The events after the cursor that a reconnecting client receives.
    async fn resume(&self, run_id: &str, after: usize) -> Vec<String> {
        let following = self.client.following(run_id).header("last-event-id", after);
        let rest = stream(following).await.unwrap().rest().await;
        rest.into_iter().map(|frame| frame.data).collect()
    }

    /// A completed run has all results of its runner, and a row for each rejected one.
    async fn check_completed(&self, run: &Value, ledger: &Ledger) {
        let (run_id, event_id) = (text(run, "run_id"), text(run, "event_id"));
        assert_eq!(self.runner_requests.posts(run_id), 1, "{run}");
        let deltas = deltas_of(event_id);
        let chunks: Vec<_> = (1..=deltas).map(|n| format!("{n} ")).collect();
        assert_eq!(ledger.text(), chunks.concat(), "{run}");
        let states = ledger
            .types()
            .iter()
            .filter(|kind| *kind == "state.updated")
            .count();
        assert_eq!(states, deltas / 5, "{run}");
        assert_eq!(ledger.0.len(), deltas + deltas / 5 + 2, "{ledger:?}");
        let rejections = self.client.rejections(run_id).await;
        assert_eq!(rejections.len(), 1, "{rejections:?}");
        assert_eq!(run["metadata"]["rejected"], 1, "{run}");
    }

    /// Each run of a conversation receives the state left by the runs before it.
    fn state(&self, ledgers: &BTreeMap<&str, Ledger>) {
        let mut progress = Value::Null;
        let next = self
            .talk
            .posts
            .values()
            .map(|post| text(&post.answer, "run_id"));
        let last = next.filter(|run_id| !self.talk.chain.iter().any(|one| one == run_id));
        let in_order = self.talk.chain.iter().map(String::as_str).chain(last);
        for run_id in in_order.filter(|_| !self.talk.chain.is_empty()) {
            if let Some(state) = self.runner_requests.state(run_id) {
                assert_eq!(state["conversation"]["progress"], progress, "{run_id}");
            }
            let written = ledgers[run_id].events().into_iter().rev();
            let newest = written
                .into_iter()
                .find(|event| event["type"] == "state.updated");
            progress = newest.map_or(progress, |event| event["data"]["value"].clone());
        }
    }

    /// The transcript has each message once: the user message of every event, and the assistant message of every
    /// completed run.
    async fn transcript(&self, runs: &[Value]) {
        let bot = match self.talk.bot {
            "" => String::new(),
            bot => format!("&bot_id={bot}"),
        };
        let history = format!("/v1/conversations/{}/history", self.talk.conversation);
        let path = format!("{history}?direction=forward&limit=100{bot}");
        let page = self.client.get(&path).await.body;
        let items = page["items"].as_array().unwrap();
        // The search index has the words of each message.
        for (role, word) in [("user", "hello"), ("assistant", "done")] {
            let path = format!("{history}/search?query={word}&top_k=100{bot}");
            let found = self.client.get(&path).await.expect(200).body;
            let found = sequences(found["items"].as_array().unwrap().iter().rev());
            let of_role = items.iter().filter(|item| item["role"] == role);
            assert_eq!(found, sequences(of_role), "search for {word}: {items:?}");
        }
        let positions = sequences(items);
        assert!(
            positions.iter().copied().eq(1..=positions.len() as u64),
            "{positions:?}"
        );
        let mut messages = BTreeSet::new();
        for item in items {
            let (role, event_id) = (text(item, "role"), text(item, "event_id"));
            assert!(messages.insert((role, event_id)), "is listed twice: {item}");
        }
        for event_id in self.talk.posts.keys() {
            assert!(
                messages.remove(&("user", event_id)),
                "{event_id} is missing"
            );
        }
        for run in runs {
            let answered = messages.remove(&("assistant", text(run, "event_id")));
            assert!(
                answered || run["status"] != "completed",
                "no answer of {run}"
            );
        }
        assert!(messages.is_empty(), "unexpected messages: {messages:?}");
    }
}

/// Positions of transcript items.
fn sequences<'a>(items: impl IntoIterator<Item = &'a Value>) -> Vec<u64> {
    let items = items.into_iter();
    items.map(|item| item["seq"].as_u64().unwrap()).collect()
}

fn sequence(event: &str) -> usize {
    let event: Value = serde_json::from_str(event).unwrap();
    usize::try_from(event["sequence"].as_u64().unwrap()).unwrap()
}
