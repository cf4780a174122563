//! Counts the Local Agent's requests to the gateway in a conversation of two turns, and the latency that agent
//! and gateway add to the model and the tool.
//!
//! The script runs twice: through a relay that counts bytes, and without the relay for the times.

mod cast;
mod relay;

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use local_agent::LocalAgent;
use local_agent::manifest::RUNNER_ID;
use runner_kit::CancellationToken;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::Options;
use crate::client::{LoadConnection, StreamCheck};
use crate::figures::{percentile, write};
use crate::process::machine;
use crate::stage::{BenchStage, Gateway, SECRET};
use cast::{FIRST, LINES, NEXT, PIECES, ScriptServers, TOOL};
use relay::CountingRelay;

/// Plays through the relay. Each gives the same counts, except for ids.
const COUNTED_PLAYS: usize = 5;

/// Calls of LangBot's agent (`LocalAgent` 0.1.0) in a run with one tool call, by our action names. They were
/// recorded once and are not measured here.
const RECORDED: [(&str, u64); 9] = [
    ("call_tool", 1),
    ("history_page", 1),
    ("models_count_tokens", 32),
    ("models_stream", 2),
    ("prompt_get", 1),
    ("retrieve_knowledge_base", 1),
    ("run_get", 15),
    ("state_get", 1),
    ("steering_pull", 2),
];

/// Figures of one turn, from its client, the audit log and the relay.
#[derive(Default)]
struct TurnFigures {
    /// Host API calls by action.
    calls: BTreeMap<String, u64>,
    request_bytes: u64,
    answer_bytes: u64,
    /// Events by type.
    events: BTreeMap<String, u64>,
    event_bytes: u64,
    /// Milliseconds beyond the time of the model and the tool.
    added_ms: f64,
}

pub(crate) async fn run(options: &Options, plays: usize) -> anyhow::Result<()> {
    ensure!(plays > 0, "--plays counts from 1");
    let stage = BenchStage::new(options).await?;
    println!("{}", machine());
    println!(
        "a model that begins after {} ms and sends {PIECES} pieces at intervals of {} ms, a tool of {} ms",
        FIRST.as_millis(),
        NEXT.as_millis(),
        TOOL.as_millis()
    );
    let relay = CountingRelay::start().await?;
    let play = AgentStage::begin(&stage, "counted", Some(&relay)).await?;
    let counted = play.repeat(COUNTED_PLAYS, Some(&relay)).await?;
    drop(play);
    let play = AgentStage::begin(&stage, "timed", None).await?;
    let timed = play.repeat(plays, None).await?;
    let mut turns = Vec::new();
    for (number, (counted, timed)) in counted.iter().zip(&timed).enumerate() {
        turns.push(print_turn(number, counted, timed)?);
    }
    write(options, &json!({"agent": turns, "plays": plays}))
}

/// The agent and its gateway, with the model and the tool.
struct AgentStage {
    gateway: Gateway,
    cast: ScriptServers,
    _agent: JoinSet<std::io::Result<()>>,
}

impl AgentStage {
    async fn begin(
        stage: &BenchStage,
        directory: &str,
        relay: Option<&CountingRelay>,
    ) -> anyhow::Result<Self> {
        let cast = ScriptServers::start().await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let runner = LocalAgent::runner(RUNNER_ID.parse()?);
        let router = runner_kit::router(vec![runner], SECRET.parse()?);
        let mut agent = JoinSet::new();
        let never = CancellationToken::new();
        agent.spawn(runner_kit::serve(listener, router, never));
        let secret = stage.secret()?;
        let public_url = relay.map(|relay| format!("public_url = \"http://{}\"", relay.address));
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n{public_url}\n\
             [egress]\nallow = [\"{address}\", \"{cast}\"]\n\
             [[runner_endpoints]]\nname = \"local-agent\"\nbase_url = \"http://{address}\"\n\
             secret = \"file:{secret}\"\n\
             [[model_providers]]\nname = \"cast\"\nkind = \"openai\"\nbase_url = \"http://{cast}/v1\"\n\
             [[models]]\nmodel_id = \"model\"\nprovider = \"cast\"\ncontext_window_tokens = 128000\n\
             [[tools]]\ntool_name = \"look\"\nurl = \"http://{cast}/look\"\ndescription = \"Looks outside\"\n\
             parameters = {{ type = \"object\", properties = {{ city = {{ type = \"string\" }} }} }}\n\
             [[knowledge_bases]]\nkb_id = \"handbook\"\n\
             [[agents]]\nname = \"main\"\nevent_types = [\"message.received\"]\n\
             scope = {{ kind = \"global\" }}\nrunner_id = \"{RUNNER_ID}\"\nconcurrency = \"steer\"\n\
             state_policy = {{ enabled = true, scopes = [\"conversation\"] }}\n\
             [agents.resource_policy]\nmodels = [\"model\"]\ntools = [\"look\"]\n\
             knowledge_bases = [\"handbook\"]\nhistory = [\"page\"]\n\
             [agents.config]\nmodel = {{ primary = \"model\" }}\nknowledge-bases = [\"handbook\"]\n",
            public_url = public_url.unwrap_or_default(),
            cast = cast.address,
            secret = secret.display(),
        );
        let databases = stage.databases();
        let sqlite = databases.first().context("SQLite")?;
        let (gateway, _) = stage.serve(directory, sqlite, &text).await?;
        if let Some(relay) = relay {
            relay.set_upstream(&gateway.served.address);
        }
        Ok(Self {
            gateway,
            cast,
            _agent: agent,
        })
    }

    /// Plays the script `plays` times after one warm-up play. Returns the turns by script line.
    async fn repeat(
        &self,
        plays: usize,
        relay: Option<&CountingRelay>,
    ) -> anyhow::Result<Vec<Vec<TurnFigures>>> {
        let mut connection = LoadConnection::open(&self.gateway.served.address).await?;
        let mut turns: Vec<_> = LINES.iter().map(|_| Vec::new()).collect();
        for number in 0..=plays {
            for (line, turns) in LINES.iter().zip(&mut turns) {
                let turn = self.say(&mut connection, number, line, relay).await?;
                if number > 0 {
                    turns.push(turn);
                }
            }
        }
        Ok(turns)
    }

    async fn say(
        &self,
        connection: &mut LoadConnection,
        conversation: usize,
        line: &str,
        relay: Option<&CountingRelay>,
    ) -> anyhow::Result<TurnFigures> {
        let body = json!({
            "event_type": "message.received", "input": {"text": line},
            "conversation": {"conversation_id": format!("c-{conversation}")},
            "actor": {"actor_type": "user", "actor_id": "u-1"},
        })
        .to_string();
        let request = format!(
            "POST /v1/events HTTP/1.1\r\n{}idempotency-key: {}\r\naccept: text/event-stream\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.about(),
            Uuid::now_v7(),
            body.len()
        );
        self.cast.worked();
        relay.map(CountingRelay::counted);
        let begin = Instant::now();
        connection.send(request.as_bytes()).await?;
        let mut stream = Vec::new();
        let status = connection
            .answer(|part| stream.extend_from_slice(part))
            .await?;
        let took = begin.elapsed();
        let stream = String::from_utf8(stream)?;
        ensure!(status == 200, "HTTP {status}: {stream}");
        let added = took.saturating_sub(self.cast.worked());
        let (request_bytes, answer_bytes) = relay.map(CountingRelay::counted).unwrap_or_default();
        let run = completed_run(&stream)?;
        Ok(TurnFigures {
            calls: self.calls(connection, run).await?,
            request_bytes,
            answer_bytes,
            events: events(&stream),
            event_bytes: stream.len() as u64,
            added_ms: added.as_secs_f64() * 1000.0,
        })
    }

    async fn calls(
        &self,
        connection: &mut LoadConnection,
        run: &str,
    ) -> anyhow::Result<BTreeMap<String, u64>> {
        let about = self.about();
        let request = format!("GET /v1/runs/{run}/audit?limit=100 HTTP/1.1\r\n{about}\r\n");
        connection.send(request.as_bytes()).await?;
        let mut body = Vec::new();
        let status = connection
            .answer(|part| body.extend_from_slice(part))
            .await?;
        ensure!(status == 200, "the audit was answered with {status}");
        let page: Value = serde_json::from_slice(&body)?;
        ensure!(page["has_more"] == false, "more than 100 calls in a turn");
        let mut calls = BTreeMap::new();
        for row in page["items"].as_array().context("a page of the audit")? {
            ensure!(row["decision"] == "allow", "a call was refused: {row}");
            let action = row["action"].as_str().context("an action")?;
            *calls.entry(action.to_owned()).or_default() += 1;
        }
        Ok(calls)
    }

    fn about(&self) -> String {
        let Gateway { served, key } = &self.gateway;
        format!(
            "host: {}\r\nauthorization: Bearer {key}\r\n",
            served.address
        )
    }
}

/// Returns the run id of a complete stream that ended with `run.completed`.
fn completed_run(text: &str) -> anyhow::Result<&str> {
    let mut stream = StreamCheck::new();
    stream.push(text.as_bytes());
    if !(stream.is_dense && stream.completed) {
        let last = text.lines().rfind(|line| line.starts_with("data: "));
        bail!(
            "a turn did not complete: {}",
            last.unwrap_or("no event was received")
        );
    }
    let first = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix(": run "));
    first.context("a stream begins with its run")
}

fn events(stream: &str) -> BTreeMap<String, u64> {
    let mut events = BTreeMap::new();
    for kind in stream
        .lines()
        .filter_map(|line| line.strip_prefix("event: "))
    {
        *events.entry(kind.to_owned()).or_default() += 1;
    }
    events
}

/// Prints the figures of one turn.
fn print_turn(
    number: usize,
    counted: &[TurnFigures],
    timed: &[TurnFigures],
) -> anyhow::Result<Value> {
    let first = counted.first().context("a play")?;
    let same = counted.iter().all(|turn| turn.calls == first.calls);
    ensure!(same, "two plays of one script made different calls");
    let times: Vec<_> = timed.iter().map(|turn| turn.added_ms).collect();
    let [p50, p99] = [50.0, 99.0].map(|at| percentile(&times, at));
    let median = |of: fn(&TurnFigures) -> u64| {
        let all: Vec<_> = counted.iter().map(|turn| of(turn) as f64).collect();
        percentile(&all, 50.0)
    };
    let (requests, answers) = (
        median(|turn| turn.request_bytes),
        median(|turn| turn.answer_bytes),
    );
    let bytes = median(|turn| turn.event_bytes);
    // The recording covers only the turn with a tool call.
    let recorded = (number == 0).then(|| BTreeMap::from(RECORDED));
    println!(
        "\nturn {}: {:<33} {:>6} {:>26}",
        number + 1,
        LINES[number],
        "here",
        "LangBot's agent, recorded"
    );
    let row = |name: &str, here: u64, there: Option<u64>| {
        let there = there.map_or("–".to_owned(), |there| there.to_string());
        println!("  {name:<39} {here:>6} {there:>26}");
    };
    let mut actions: Vec<_> = first.calls.keys().map(String::as_str).collect();
    actions.extend(recorded.iter().flat_map(BTreeMap::keys));
    actions.sort_unstable();
    actions.dedup();
    for action in actions {
        let there = recorded.as_ref();
        let there = there.map(|there| there.get(action).copied().unwrap_or(0));
        let here = first.calls.get(action).copied().unwrap_or(0);
        row(action, here, there);
    }
    let here = first.calls.values().sum();
    row(
        "host API calls",
        here,
        recorded.map(|all| all.values().sum()),
    );
    println!("  bytes of requests {requests:.0}, of answers {answers:.0}");
    let all: u64 = first.events.values().sum();
    println!("  {all} events of {bytes:.0} bytes: {:?}", first.events);
    println!(
        "  added to model and tool: p50 {p50:.1} ms, p99 {p99:.1} ms, {} plays",
        times.len()
    );
    Ok(json!({
        "turn": number + 1, "calls": first.calls, "request_bytes": requests,
        "answer_bytes": answers, "events": first.events, "event_bytes": bytes,
        "added_p50_ms": p50, "added_p99_ms": p99,
    }))
}
