//! Bounds of records, and the errors that report them.

use action_graph::transcript::TranscriptTurn;
use protocol::run::RunStatus;
use serde_json::json;

use super::support::{
    NOW, action, begun, declared, finish, graph_of, load, names, next_run, record,
};
use crate::records::{RecordsError, pattern};
use crate::testing::memory::Memory;

#[tokio::test]
async fn sixteen_graphs_may_be_open() {
    let host = Memory::new("r1");
    let (mut records, _) = load(&host).await;
    for at in 0..16 {
        begun(
            &mut records,
            &format!("g_{at}"),
            &[action("a", "look", json!({}))],
        )
        .await;
    }
    let (graph, source) = graph_of("g_16", &declared(&[action("a", "look", json!({}))]));
    let opened = records.open(16, &graph, &source, "", &[], NOW).await;
    assert!(matches!(opened, Err(RecordsError::Full { bound: 16, .. })));
    assert!(!host.world().state.contains_key("apd.g.g_16"));
}

#[tokio::test]
async fn index_holds_fifty_closed_graphs() {
    let host = Memory::new("r1");
    let (mut records, _) = load(&host).await;
    for at in 0..53 {
        let id = format!("g_{at}");
        let mut graph = begun(&mut records, &id, &[action("a", "look", json!({}))]).await;
        finish(&mut graph, "a", json!("x".repeat(500)));
        let record = record(&graph, Vec::new(), NOW);
        records.close(&graph, &record).await.unwrap();
    }
    let bytes = host.world().state["apd.index"].0.to_string().len();
    assert!(bytes < 64 << 10, "{bytes}");
    assert_eq!(records.archive.index.value.closed.len(), 50);
    for _ in 0..3 {
        records.finish(Vec::new(), NOW).await.unwrap();
    }
    assert!(
        names(&host, "g_2").is_empty(),
        "bodies of forgotten graphs go"
    );
    assert!(!names(&host, "g_3").is_empty());
    assert_eq!(records.graph_facts("").await.unwrap().len(), 8);
}

#[tokio::test]
async fn turns_keep_64_kib() {
    let host = Memory::new("r0");
    for at in 0..20 {
        let run = host.begin(&format!("r{at}"));
        let (mut records, _) = load(&run).await;
        let text = "word ".repeat(2_000);
        let turns = vec![TranscriptTurn::Answer { text: text.clone() }; 6];
        records.finish(turns, NOW).await.unwrap();
        run.end(RunStatus::Completed);
    }
    let bytes = host.world().state["apd.turns"].0.to_string().len();
    assert!(bytes < 64 << 10, "{bytes}");
    let (_, loaded) = load(&host.begin("r99")).await;
    assert_eq!(loaded.digests.last().unwrap().run, "r19");
    assert!(loaded.digests.len() > 1);
}

#[tokio::test]
async fn approvals_for_the_conversation_are_bounded() {
    let host = Memory::new("r1");
    let (mut records, _) = load(&host).await;
    for at in 0..32 {
        let standing = pattern("mail", &[].into(), &json!({"to": at}));
        records.allow(&standing).await.unwrap();
    }
    let standing = pattern("mail", &[].into(), &json!({"to": "more"}));
    let refused = records.allow(&standing).await;
    assert!(matches!(refused, Err(RecordsError::Full { bound: 32, .. })));
    assert_eq!(records.standing().len(), 32);
}

#[tokio::test]
async fn large_outputs_are_stored_in_parts() {
    let first = Memory::new("r1");
    let (mut records, _) = load(&first).await;
    let actions = [
        action("a", "look", json!({})),
        action("b", "look", json!({"depends_on": ["a"]})),
    ];
    let mut graph = begun(&mut records, "g_1", &actions).await;
    let text = "\u{1}".repeat(1_500_000);
    finish(&mut graph, "a", json!(text));
    records.driven.save(&graph).await.unwrap();
    assert!(names(&first, "g_1").iter().any(|name| name.contains(".p1")));
    let (_, loaded) = next_run(&first, RunStatus::Failed).await;
    let output = loaded.mine[0]
        .graph
        .node(&"a".into())
        .unwrap()
        .output
        .clone();
    assert_eq!(output.unwrap().value, json!(text));
}

#[tokio::test]
async fn full_storage_starts_no_effect() {
    let host = Memory::new("r1");
    let (mut records, _) = load(&host).await;
    let (graph, source) = graph_of("g_1", &declared(&[action("a", "look", json!({}))]));
    host.fail("blob_put", "payload_too_large", 1);
    let opened = records.open(0, &graph, &source, "", &[], NOW).await;
    assert!(matches!(opened, Err(RecordsError::QuotaExceeded(_))));
    assert!(!records.driven.holds(&graph.id));
    assert!(!host.world().state.contains_key("apd.index"));
}

#[tokio::test(start_paused = true)]
async fn passing_failures_are_tried_again() {
    let host = Memory::new("r1");
    let (mut records, _) = load(&host).await;
    let mut graph = begun(&mut records, "g_1", &[action("a", "look", json!({}))]).await;
    finish(&mut graph, "a", json!(1));
    host.fail("state_put", "callback.unreachable", 3);
    records.driven.save(&graph).await.unwrap();
    host.fail("state_put", "callback.unreachable", 4);
    let failed = records.driven.save(&graph).await;
    assert!(matches!(failed, Err(RecordsError::Unavailable(_))));
}
