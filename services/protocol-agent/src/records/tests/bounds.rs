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
    assert!(!host.world().documents.contains_key("apd.g.g_16"));
}

#[tokio::test]
async fn fifty_closed_graphs_stay() {
    let host = Memory::new("r1");
    let (mut records, _) = load(&host).await;
    for at in 0..53 {
        let id = format!("g_{at}");
        let mut graph = begun(&mut records, &id, &[action("a", "look", json!({}))]).await;
        finish(&mut graph, "a", json!("x".repeat(500)));
        let record = record(&graph, Vec::new(), NOW);
        records.close(&graph, &record).await.unwrap();
    }
    records.finish(Vec::new(), NOW).await.unwrap();
    assert_eq!(records.archive.entries.len(), 50);
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
    let bytes = host.world().documents["apd.turns"].value.to_string().len();
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
async fn large_bodies_are_written_in_parts() {
    let first = Memory::new("r1");
    let (mut records, _) = load(&first).await;
    let actions = ["a", "b", "c"].map(|id| action(id, "look", json!({})));
    let mut graph = begun(&mut records, "g_1", &actions).await;
    let text = "x".repeat(9_000_000);
    for id in ["a", "b"] {
        finish(&mut graph, id, json!(text));
    }
    records.driven.save(&graph).await.unwrap();
    let (_, loaded) = next_run(&first, RunStatus::Failed).await;
    let node = |id: &str| loaded.mine[0].graph.node(&id.into()).unwrap();
    for id in ["a", "b"] {
        assert_eq!(node(id).output.as_ref().unwrap().value, json!(text));
    }
    finish(&mut graph, "c", json!("\u{1}".repeat(3_000_000)));
    let (mut records, _) = next_run(&first, RunStatus::Failed).await;
    let refused = records.driven.save(&graph).await;
    assert!(matches!(
        refused,
        Err(RecordsError::Full {
            what: "a stored result",
            ..
        })
    ));
}

#[tokio::test]
async fn full_storage_starts_no_effect() {
    let host = Memory::new("r1");
    let (mut records, _) = load(&host).await;
    let (graph, source) = graph_of("g_1", &declared(&[action("a", "look", json!({}))]));
    host.fail("put_document", "payload_too_large", 1);
    let opened = records.open(0, &graph, &source, "", &[], NOW).await;
    assert!(matches!(opened, Err(RecordsError::QuotaExceeded(_))));
    assert!(!records.driven.holds(&graph.id));
    assert!(host.world().documents.is_empty());
}

#[tokio::test(start_paused = true)]
async fn passing_failures_are_tried_again() {
    let host = Memory::new("r1");
    let (mut records, _) = load(&host).await;
    let mut graph = begun(&mut records, "g_1", &[action("a", "look", json!({}))]).await;
    finish(&mut graph, "a", json!(1));
    host.fail("put_document", "callback.unreachable", 3);
    records.driven.save(&graph).await.unwrap();
    host.fail("put_document", "callback.unreachable", 4);
    let failed = records.driven.save(&graph).await;
    assert!(matches!(failed, Err(RecordsError::Unavailable(_))));
}
