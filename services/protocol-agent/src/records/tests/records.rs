//! Records are written, read again, and belong to one conversation.

use std::collections::BTreeSet;

use action_graph::action::Effect;
use action_graph::node::{BlockReason, NodeState};
use action_graph::transcript::{Notice, TranscriptTurn};
use protocol::run::RunStatus;
use serde_json::{Value, json};

use super::support::{
    NOW, action, begun, declared, finish, graph_of, load, load_at, me, names, next_run, record,
    started, state,
};
use crate::records::{Adoption, GraphRecords, OpenOutcome, RecordsError, RunIdentity, pattern};
use crate::testing::memory::Memory;

fn two() -> Vec<Value> {
    vec![
        action("a", "look", json!({})),
        action("b", "write", json!({"depends_on": ["a"]})),
    ]
}

fn answer(text: &str) -> TranscriptTurn {
    TranscriptTurn::Answer {
        text: text.to_owned(),
    }
}

#[tokio::test]
async fn graphs_outlive_their_run() {
    let (first, mut records, mut graph) = started(&two()).await;
    finish(&mut graph, "a", json!({"found": 3}));
    records.driven.save(&graph).await.unwrap();
    first.end(RunStatus::Failed);
    let second = first.begin("r2");
    let (records, mut loaded) = load(&second).await;
    let resumed = loaded.mine.pop().unwrap();
    graph.transitions.clear();
    assert_eq!(resumed.graph, graph);
    assert_eq!(records.driven.runs(&graph.id), ["r1", "r2"]);
}

#[tokio::test]
async fn damaged_graphs_are_closed_and_named() {
    let (first, _, _) = started(&two()).await;
    first.end(RunStatus::Failed);
    for stored in first.world().documents.values_mut() {
        stored.bodies.retain(|id, _| !id.contains("constants"));
    }
    let second = first.begin("r2");
    let (mut records, loaded) = load(&second).await;
    assert_eq!(loaded.lost.len(), 1);
    assert!(names(&second, "g_1").is_empty());
    let facts = records.graph_facts("").await.unwrap();
    assert!(facts[0].expired && !facts[0].open);
}

#[tokio::test]
async fn later_versions_are_left_alone() {
    let (first, _, _) = started(&two()).await;
    first.end(RunStatus::Failed);
    let key = "apd.g.g_1";
    let later = |key: &str| {
        let mut world = first.world();
        world.documents.get_mut(key).unwrap().summary["version"] = json!(2);
    };
    later(key);
    let second = first.begin("r2");
    let (mut records, loaded) = load(&second).await;
    assert!(loaded.lost[0].1.contains("upgrade the runner"));
    assert_eq!(second.world().documents[key].summary["version"], 2);
    records.finish(vec![answer("one")], NOW).await.unwrap();
    later("apd.turns");
    let third = first.begin("r3");
    let refused = GraphRecords::load(third.clone(), me(&third), NOW).await;
    assert!(matches!(refused, Err(RecordsError::Refused(why)) if why.contains("upgrade")));
}

#[tokio::test]
async fn stores_nothing_without_access() {
    let host = Memory::new("r1");
    let full = me(&host);
    let (graph, source) = graph_of("g_1", &declared(&two()));
    for (me, digests) in [
        (
            RunIdentity {
                has_conversation: false,
                ..full.clone()
            },
            false,
        ),
        (
            RunIdentity {
                has_state: false,
                ..full.clone()
            },
            false,
        ),
        (
            RunIdentity {
                has_runs: false,
                ..full
            },
            true,
        ),
    ] {
        let (mut records, _) = GraphRecords::load(host.clone(), me, NOW).await.unwrap();
        assert!(!records.can_persist() && records.unavailable().is_some());
        let opened = records.open(0, &graph, &source, "", &[], NOW).await;
        assert!(matches!(opened, Err(RecordsError::Refused(_))));
        records.driven.save(&graph).await.unwrap();
        let finished = records.finish(vec![answer("one")], NOW).await;
        assert_eq!(finished.is_ok(), digests);
    }
    assert_eq!(host.world().documents.len(), 1, "only turns");
}

#[tokio::test]
async fn declarations_make_one_graph() {
    let (host, _, graph) = started(&two()).await;
    let (mut records, loaded) = load(&host).await;
    assert_eq!(loaded.mine.len(), 1);
    let (other, source) = graph_of("g_2", &declared(&two()));
    let opened = records
        .open(1, &other, &source, "", &[], NOW)
        .await
        .unwrap();
    assert_eq!(opened, OpenOutcome::Exists(graph.id));
}

#[tokio::test]
async fn closed_graphs_stay_referable() {
    let (first, mut records, mut graph) = started(&two()).await;
    finish(&mut graph, "a", json!({"text": "x".repeat(70_000)}));
    finish(&mut graph, "b", json!({"done": true}));
    let closing = record(&graph, records.driven.runs(&graph.id), NOW);
    records.close(&graph, &closing).await.unwrap();
    records.close(&graph, &closing).await.unwrap();
    first.end(RunStatus::Completed);
    let second = first.begin("r2");
    let (mut records, loaded) = load(&second).await;
    assert!(loaded.mine.is_empty());
    let facts = records.graph_facts("").await.unwrap().remove(0);
    assert!(!facts.open && !facts.expired);
    assert_eq!(
        facts.actions[&"b".into()].output,
        Some(json!({"done": true}))
    );
    assert_eq!(
        facts.actions[&"a".into()].output,
        None,
        "too large unless named"
    );
    let named = records
        .graph_facts("runtime://runs/g_1/actions/a/output")
        .await
        .unwrap();
    assert!(named[0].actions[&"a".into()].output.is_some());
    let output = records
        .archive
        .output(&graph.id, &"a".into())
        .await
        .unwrap();
    assert_eq!(output, named[0].actions[&"a".into()].output);
    let record = records.archive.read[&graph.id]
        .as_ref()
        .unwrap()
        .record
        .clone();
    assert_eq!(record, serde_json::to_value(closing).unwrap());
}

#[tokio::test]
async fn results_expire_after_30_days() {
    const DAY: u64 = 86_400_000;
    let (first, mut records, mut graph) = started(&two()[..1]).await;
    finish(&mut graph, "a", json!(1));
    records
        .close(&graph, &record(&graph, Vec::new(), NOW))
        .await
        .unwrap();
    first.end(RunStatus::Completed);
    let second = first.begin("r2");
    let (mut records, _) = load_at(&second, NOW + 29 * DAY).await;
    assert!(!records.graph_facts("").await.unwrap()[0].expired);
    let (mut records, _) = load_at(&second, NOW + 31 * DAY).await;
    assert!(records.graph_facts("").await.unwrap().is_empty());
    records.finish(Vec::new(), NOW + 31 * DAY).await.unwrap();
    assert!(names(&second, "g_1").is_empty());
}

#[tokio::test]
async fn lists_and_revokes_conversation_approvals() {
    let first = Memory::new("r1");
    let (mut records, _) = load(&first).await;
    let effects = BTreeSet::from([Effect::Send]);
    let input = json!({"to": "a@b", "text": "line\nline"});
    let standing = pattern("mail", &effects, &input);
    assert!(standing.covers("mail", &effects, &json!({"to": "a@b", "text": "else"})));
    assert!(!standing.covers("mail", &effects, &json!({"to": "c@d", "text": "else"})));
    records.allow(&standing).await.unwrap();
    records.allow(&standing).await.unwrap();
    first.end(RunStatus::Completed);
    let second = first.begin("r2");
    let (mut records, _) = load(&second).await;
    assert_eq!(records.standing(), std::slice::from_ref(&standing));
    assert!(records.revoke(&standing.id).await.unwrap());
    assert!(!records.revoke(&standing.id).await.unwrap());
    let (records, _) = load(&second).await;
    assert!(records.standing().is_empty());
}

#[tokio::test]
async fn revoked_approvals_cover_resumed_graphs_no_more() {
    let first = Memory::new("r1");
    let (mut records, _) = load(&first).await;
    let (mut graph, source) = graph_of("g_1", &declared(&two()));
    let standing = pattern("mail", &BTreeSet::from([Effect::Send]), &json!({}));
    graph.settings.standing = vec![standing];
    records
        .open(0, &graph, &source, "", &[], NOW)
        .await
        .unwrap();
    let (_, loaded) = next_run(&first, RunStatus::Failed).await;
    assert!(loaded.mine[0].graph.settings.standing.is_empty());
}

#[tokio::test]
async fn two_runs_store_their_graphs() {
    let first = Memory::new("r1");
    let second = first.begin("r2");
    let (mut one, _) = load(&first).await;
    let (mut other, _) = load(&second).await;
    begun(&mut one, "g_1", &two()).await;
    begun(&mut other, "g_2", &two()).await;
    one.finish(vec![answer("one")], NOW).await.unwrap();
    other.finish(vec![answer("two")], NOW).await.unwrap();
    first.end(RunStatus::Failed);
    second.end(RunStatus::Failed);
    let (_, loaded) = load(&first.begin("r3")).await;
    assert_eq!((loaded.mine.len(), loaded.digests.len()), (2, 2));
}

#[tokio::test]
async fn turns_of_a_run_are_replaced() {
    let host = Memory::new("r1");
    let (mut records, _) = load(&host).await;
    let notice = TranscriptTurn::Notice(Notice {
        sentence: "s".to_owned(),
        lines: Vec::new(),
    });
    records
        .finish(vec![answer("one"), notice], NOW)
        .await
        .unwrap();
    records.finish(vec![answer("two")], NOW).await.unwrap();
    let (_, loaded) = load(&host.begin("r2")).await;
    assert_eq!(loaded.digests.len(), 1);
    assert_eq!(loaded.digests[0].turns, [answer("two")]);
    assert_eq!(loaded.digests[0].event, "e-r1");
}

#[tokio::test]
async fn revisions_are_stored() {
    let (first, mut records, mut graph) = started(&two()).await;
    let other = vec![
        action("a", "look", json!({})),
        action("c", "look", json!({"depends_on": ["a"]})),
    ];
    let (other, _) = graph_of("g_x", &declared(&other));
    let actions = vec![other.node(&"c".into()).unwrap().action.clone()];
    let event = action_graph::GraphEvent::Revise {
        actions,
        constants: other.constants,
    };
    action_graph::step(&mut graph, event, NOW);
    records.driven.save(&graph).await.unwrap();
    let (_, loaded) = next_run(&first, RunStatus::Failed).await;
    let graph = &loaded.mine[0].graph;
    assert_eq!(graph.generation, 2);
    assert_eq!(state(graph, "c"), NodeState::Pending);
    assert_ne!(state(graph, "c"), NodeState::Blocked(BlockReason::Input));
    assert!(graph.node(&"b".into()).is_none());
}

#[tokio::test]
async fn gone_graphs_are_not_adopted() {
    let host = Memory::new("r1");
    let (mut records, _) = load(&host).await;
    let adopted = records
        .adopt(&action_graph::ids::GraphId("g_0".to_owned()))
        .await;
    assert!(matches!(adopted, Ok(Adoption::Gone)));
}
