//! The example runners in three languages give identical results for the same events.

use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Row};

use crate::support::Sqlite;
use crate::support::gateway::{Config, GatewayProcess};
use crate::support::listening::{ChildServer, rust_echo};
use crate::support::node::typescript_echo;
use crate::support::python::python_echo;

/// Events with several conversations and with none, with various texts and without text.
fn events() -> Vec<Value> {
    let texts = [
        (json!({"conversation_id": "c-1"}), "hello big world"),
        (json!({"conversation_id": "c-2"}), "another conversation"),
        (
            json!({"conversation_id": "c-1", "thread_id": "t-1"}),
            "a thread of the first",
        ),
        (
            json!({"conversation_id": "c-1"}),
            "  two\n lines,\r\n größer 你好\u{3000}世界 🎈👩\u{200d}👩 e\u{301} ",
        ),
        (
            json!({"conversation_id": "c-2"}),
            "a\u{85}b\u{a0}c\u{1680}d\u{2028}e\u{2029}f \u{feff}g",
        ),
        (json!({"conversation_id": "c-2"}), ""),
        (json!({"conversation_id": "c-2"}), " \t\n\u{3000}"),
        (json!(null), "to nobody in particular"),
        (
            json!({"conversation_id": "c-3"}),
            "</script> \"quoted\" \\ \u{7f} {} [] data: x",
        ),
    ];
    let mut events: Vec<_> = texts
        .map(|(conversation, text)| {
            json!({"event_type": "message.received", "input": {"text": text},
                "conversation": conversation,
                "actor": {"actor_type": "user", "actor_id": "u-1", "actor_name": "Ada"}})
        })
        .into();
    let image = json!({"type": "image", "mime_type": "image/png", "size": 12, "name": "a.png",
        "url": "https://x.test/a.png", "id": "a-1"});
    events.extend([
        json!({"event_type": "message.received", "conversation": {"conversation_id": "c-1"},
            "input": {"text": "look at this", "attachments": [image]}}),
        json!({"event_type": "message.received", "conversation": {"conversation_id": "c-3"},
            "input": {"contents": [{"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}],
                "attachments": [image]}}),
        json!({"event_type": "tick.hourly", "source": "timer", "data": {"hour": 7}}),
        json!({"event_type": "form.submitted", "conversation": {"conversation_id": "c-3"},
            "data": {"fields": {"size": 3}}}),
        json!({"event_type": "message.received", "conversation": {"conversation_id": "c-1"},
            "input": {"text": "word ".repeat(500)}}),
    ]);
    for (event, number) in events.iter_mut().zip(1..) {
        event["event_id"] = json!(format!("m-{number}"));
    }
    events
}

const OF_ONE_RUN: &[&str] = &[
    "run_id",
    "run_url",
    "agent_id",
    "runner_id",
    "transcript_id",
    "cursor",
    "created_at",
    "started_at",
    "finished_at",
    "deadline_at",
    "duration_ms",
];

fn without(mut object: Value, members: &[&str]) -> Value {
    let all = object.as_object_mut().unwrap();
    all.retain(|member, _| !members.contains(&member.as_str()));
    object
}

/// All data that can be read afterwards, without ids and times of the single run.
#[derive(Debug, PartialEq)]
struct RunData {
    answers: Vec<Value>,
    runs: Vec<Value>,
    ledgers: Vec<Vec<Value>>,
    transcripts: Vec<Vec<Value>>,
    /// Scope, key, value, version, and the index of the last writing event.
    state: Vec<(String, String, String, i64, usize)>,
}

async fn collect_data(runner_url: &str, runner_id: &'static str) -> RunData {
    let mut config = Config::for_runner_at(runner_url);
    config.agents[0].runner_id = runner_id;
    config.agents[0].event_types = "*";
    let gateway = GatewayProcess::start(Sqlite, config).await.unwrap();
    let client = gateway.client();

    let mut story = RunData {
        answers: Vec::new(),
        runs: Vec::new(),
        ledgers: Vec::new(),
        transcripts: Vec::new(),
        state: Vec::new(),
    };
    let mut run_ids = Vec::new();
    for event in events() {
        let answer = client.post(&event).await;
        let run_id = answer.run_id();
        let run = client.finished(&run_id).await;
        let ledger = client.ledger(&run_id).await;
        ledger.assert_valid(&run_id);
        assert_eq!(run["runner_id"], runner_id);
        story.answers.push(without(answer.body, OF_ONE_RUN));
        story.runs.push(without(run, OF_ONE_RUN));
        let events = ledger.events().into_iter();
        story
            .ledgers
            .push(events.map(|event| without(event, OF_ONE_RUN)).collect());
        run_ids.push(run_id);
    }
    for (conversation, thread) in [
        ("c-1", ""),
        ("c-1", "?thread_id=t-1"),
        ("c-2", ""),
        ("c-3", ""),
    ] {
        let path = format!("/v1/conversations/{conversation}/history{thread}");
        let page = client.get(&path).await.body;
        assert_eq!(page["has_more"], false, "{page}");
        let items = page["items"].as_array().unwrap().iter().cloned();
        story
            .transcripts
            .push(items.map(|item| without(item, OF_ONE_RUN)).collect());
    }
    story.state = state(&gateway, &run_ids).await;
    story
}

/// Reads the state from its table, because no client route returns it.
async fn state(
    gateway: &GatewayProcess,
    run_ids: &[String],
) -> Vec<(String, String, String, i64, usize)> {
    let options: SqliteConnectOptions = gateway.database_url().parse().unwrap();
    let mut database = options.read_only(true).connect().await.unwrap();
    let rows = sqlx::query("SELECT scope, key, value, version, run_id FROM state_entries")
        .fetch_all(&mut database)
        .await
        .unwrap();
    let mut entries: Vec<_> = rows
        .iter()
        .map(|row| {
            let run_id: String = row.get(4);
            let writer = run_ids.iter().position(|one| *one == run_id);
            (
                row.get(0),
                row.get(1),
                row.get(2),
                row.get(3),
                writer.unwrap(),
            )
        })
        .collect();
    entries.sort_by_key(|(.., writer)| *writer);
    entries
}

/// Minimum content of the data, so that three failing runners are not equal.
fn assert_rich(story: &RunData) {
    assert_eq!(story.runs.len(), 14);
    for run in &story.runs {
        assert_eq!(run["status"], "completed", "{run}");
    }
    let deltas = story.ledgers.iter().map(Vec::len).sum::<usize>();
    assert!(deltas > 550, "{deltas}");
    let items: Vec<_> = story.transcripts.iter().map(Vec::len).collect();
    assert_eq!(items, [8, 2, 8, 5]);
    let counts: Vec<_> = story.state.iter().map(|entry| entry.2.as_str()).collect();
    assert_eq!(counts, ["1", "4", "3", "4"]);
}

#[tokio::test]
async fn example_runners_produce_identical_ledgers() {
    let rust = rust_echo().await;
    let (python, typescript) = (python_echo().await, typescript_echo().await);
    let tell_of = async |runner: &Option<ChildServer>, runner_id| match runner {
        Some(runner) => Some(collect_data(&runner.url, runner_id).await),
        None => None,
    };
    let (rust, python, typescript) = tokio::join!(
        collect_data(&rust.url, "plugin:runnel/echo/default"),
        tell_of(&python, "plugin:runnel/echo-python/default"),
        tell_of(&typescript, "plugin:runnel/echo-typescript/default"),
    );
    assert_rich(&rust);
    for other in [python, typescript].iter().flatten() {
        assert_same(&rust, other);
    }
}

/// Compares each part, for readable failures.
#[track_caller]
fn assert_same(one: &RunData, other: &RunData) {
    for (one, other) in one.ledgers.iter().zip(&other.ledgers) {
        for (one, other) in one.iter().zip(other) {
            assert_eq!(one, other);
        }
    }
    assert_eq!(one, other);
}
