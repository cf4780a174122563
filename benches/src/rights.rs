//! The rule check of a host call: whether the snapshot of a run grants an operation, or a resource by name.

use std::hint::black_box;

use domain::authorization::AuthorizationSnapshot;
use protocol::resources::{KnowledgeOperation, ModelOperation, ToolOperation};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Options;
use crate::graph::{PathTimes, print_figures};

/// Granted resources of each kind.
const GRANTS: usize = 1000;
/// Repetitions of one check in a round.
const REPEATS: usize = 1000;
const TARGET_US: f64 = 20.0;

/// Measures every check in each round. Fails if one misses its target.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let snapshot: AuthorizationSnapshot = serde_json::from_value(snapshot())?;
    // The last name costs the most; an ungranted one costs the same.
    let last = format!("r{}", GRANTS - 1);
    anyhow::ensure!(
        snapshot.tool(&last, ToolOperation::Call).is_ok(),
        "the last tool is granted"
    );
    let mut figures = [
        "operation",
        "model",
        "tool",
        "knowledge base",
        "ungranted tool",
    ]
    .map(|name| PathTimes::new(name, TARGET_US));
    for _ in 0..options.rounds * REPEATS {
        let granted = black_box(&snapshot);
        figures[0].time(|| black_box(granted.event_get().is_ok()));
        figures[1].time(|| black_box(granted.model(&last, ModelOperation::Invoke).is_ok()));
        figures[2].time(|| black_box(granted.tool(&last, ToolOperation::Call).is_ok()));
        figures[3].time(|| {
            let base = granted.knowledge_base(&last, KnowledgeOperation::Retrieve);
            black_box(base.is_ok())
        });
        figures[4].time(|| black_box(granted.tool("other", ToolOperation::Call).is_ok()));
    }
    print_figures(options, "rights", &figures)
}

fn snapshot() -> Value {
    let granted = |key: &str, operation: &str| -> Value {
        let names = (0..GRANTS).map(|n| json!({key: format!("r{n}"), "operations": [operation]}));
        names.collect()
    };
    json!({
        "v": 1, "run_id": Uuid::nil(), "workspace_id": "w", "agent_id": Uuid::nil(), "agent_version": 1,
        "runner_id": "plugin:a/b/c", "endpoint_id": Uuid::nil(), "event_id": "e", "conversation": null,
        "resources": {
            "models": granted("model_id", "invoke"), "tools": granted("tool_name", "call"),
            "knowledge_bases": granted("kb_id", "retrieve"),
        },
        "available_apis": {}, "operations": ["events:get", "state:conversation"], "state": {}, "decisions": [],
    })
}
