//! Lists of one conversation in a workspace with many conversations.

use serde_json::{Value, json};

use crate::support::client::message;
use crate::support::database::rows;
use crate::support::{OwnStage, Postgres, Stage};

const OF_ONE: [&str; 3] = ["/v1/runs", "/v1/events", "/v1/interactions"];

/// Rows of other conversations, newer than today, so that a scan from the newest row passes all of them.
const OTHER_CONVERSATIONS: &str = "
    INSERT INTO conversations
        (key, workspace_id, bot_id, conversation_id, thread_id, last_event_seq, last_transcript_seq, version)
        SELECT 'key-' || n, 'default', '', 'other-' || n, '', 1, 0, 1 FROM generate_series(1, 20000) n;
    INSERT INTO events
        (workspace_id, event_id, dedupe_key, body_sha256, answer, event_type, source, bot_id, conversation_key,
         event_seq, envelope, received_at)
        SELECT 'default', 'z-' || n, 'event:z-' || n, '', '{}', 'message.received', 'api', '', 'key-' || n,
         1, '{}', 4102444800000 FROM generate_series(1, 20000) n;
    INSERT INTO runs
        (id, workspace_id, event_id, agent_id, agent_version, runner_id, endpoint_id, conversation_key, status,
         attempt, lease_epoch, last_sequence, deadline_at, agent_spec, snapshot, snapshot_sha256, metadata,
         created_at, finished_at)
        SELECT 'z-' || n, 'default', 'z-' || n, '', 1, '', '', 'key-' || n, 'completed',
         1, 1, 1, 0, '', '', '', '{}', 4102444800000, 4102444800000 FROM generate_series(1, 20000) n;
    INSERT INTO interactions
        (id, workspace_id, run_id, sequence, interaction_id, request, expires_at, asked_at)
        SELECT 'ffffffff-ffff-7fff-bfff-' || lpad(to_hex(n), 12, '0'), 'default', 'z-' || n, 1, 'q', '{}', 0, 0 FROM generate_series(1, 20000) n";

async fn pages(stage: &Stage) -> Vec<Value> {
    let mut pages = Vec::new();
    for path in OF_ONE {
        let path = format!("{path}?conversation_id=c-7");
        let page = stage.client.get(&path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        pages.push(page.body);
    }
    pages
}

/// PostgreSQL caches plans. A plan for empty tables, made without statistics, must also suit full tables,
/// because autovacuum replaces it only minutes later.
#[tokio::test]
async fn cached_plan_finds_conversation_among_many() {
    let stage = or_skip!(OwnStage::on(Postgres, |_| {}).await);
    let database = stage.gateway.database_url();
    for table in ["conversations", "events", "runs", "interactions"] {
        let blind = format!("ALTER TABLE {table} SET (autovacuum_enabled = false)");
        rows(&database, &blind).await;
    }
    // Often enough to cache a generic plan on each connection.
    for _ in 0..80 {
        pages(&stage).await;
    }
    let mut event = message("m-1");
    event["conversation"]["conversation_id"] = json!("c-7");
    let run_id = stage.client.post(&event).await.run_id();
    stage.outcome(&run_id).await;
    rows(&database, OTHER_CONVERSATIONS).await;

    let pages = pages(&stage).await;
    let found: Vec<_> = pages.iter().map(|page| page["items"].as_array()).collect();
    let [Some(runs), Some(events), Some(interactions)] = found[..] else {
        panic!("{pages:?}");
    };
    assert_eq!((runs.len(), events.len(), interactions.len()), (1, 1, 0));
    assert_eq!(runs[0]["run_id"], run_id.as_str());
    assert_eq!(events[0]["event_id"], "m-1");
}
