//! Administrative changes: atomic with their objects, in order across replicas, deleted after their retention.
use std::time::Duration;

use crate::support::{StoreFixture, on_both};
use futures_util::future::join_all;
use protocol::change::{ChangeOrder, ObjectKind};
use protocol::id::{AgentId, WorkspaceId};
use protocol::principal::PrincipalKind;
use serde_json::{Value, json};
use store::{Backend, ChangeFilter, ChangeRecord, ChangeStamp, SaveAgent, Store, StoreError};
use tokio::task::JoinSet;
use uuid::Uuid;

on_both!(
    failed_change_leaves_no_row,
    concurrent_changes_form_a_chain,
    deletes_changes_after_their_age,
);

const AT: i64 = 7_000;

fn stamp() -> ChangeStamp {
    ChangeStamp::of(PrincipalKind::Cli, AT)
}

fn create(workspace: &WorkspaceId, name: &str) -> SaveAgent {
    let spec = json!({"name": name, "event_types": ["*"], "runner_id": "plugin:a/b/c"});
    SaveAgent::Create {
        id: AgentId(Uuid::now_v7()),
        workspace: workspace.clone(),
        spec: serde_json::from_value(spec).unwrap(),
        by: PrincipalKind::Cli.into(),
        at: AT,
    }
}

async fn oldest_first(bench: &StoreFixture) -> Vec<ChangeRecord> {
    let filter = ChangeFilter {
        kind: Some(ObjectKind::Agent),
        order: ChangeOrder::Oldest,
        ..ChangeFilter::default()
    };
    let found = bench
        .audit_log()
        .list_changes(&bench.workspace, &filter, None, 100)
        .await;
    found.unwrap().items
}

async fn failed_change_leaves_no_row(bench: StoreFixture) {
    let work = create(&bench.workspace, "a");
    bench.change(stamp(), work).await.unwrap();
    let taken = bench.change(stamp(), create(&bench.workspace, "a")).await;
    assert!(matches!(taken, Err(StoreError::Taken)), "{taken:?}");
    let found = oldest_first(&bench).await;
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].by.kind, found[0].at), (PrincipalKind::Cli, AT));

    // Without its table no change is possible: the object and its row are one commit.
    bench.tamper("DROP TABLE changes").await;
    let failed = bench.change(stamp(), create(&bench.workspace, "b")).await;
    assert!(failed.is_err(), "{failed:?}");
    let agents = bench.agents().list_agents(&bench.workspace, None, 10).await;
    assert_eq!(agents.unwrap().items.len(), 1);
}

/// Each change begins with the result of the one before, also if replicas write at the same time.
async fn concurrent_changes_form_a_chain(bench: StoreFixture) {
    let work = create(&bench.workspace, "a");
    let SaveAgent::Create { id, spec, .. } = work.clone() else {
        unreachable!()
    };
    bench.change(stamp(), work).await.unwrap();
    let (other, writer) = Store::open(&bench.url()).await.unwrap();
    let mut writing = JoinSet::new();
    writing.spawn(writer);
    let updates = (1..=20_i64).map(|number| {
        let mut spec = spec.clone();
        spec.config.insert("n".to_owned(), json!(number));
        let update = SaveAgent::Update {
            id,
            workspace: bench.workspace.clone(),
            spec,
            if_match: None,
            by: PrincipalKind::Cli.into(),
            at: AT,
        };
        // `SQLite` has one writer.
        let is_other = number % 2 == 0 && bench.backend() == Backend::Postgres;
        let store: Store = if is_other {
            other.clone()
        } else {
            bench.store.clone()
        };
        async move { store.change(stamp(), update).await.unwrap() }
    });
    join_all(updates).await;
    other.close().await;
    writing.join_all().await;

    let mut found = oldest_first(&bench).await;
    // Ids have the times of the requests, which may be written in another order.
    found.sort_by_key(|change| change.version);
    let versions: Vec<_> = found.iter().map(|change| change.version).collect();
    assert_eq!(versions, (1..=21).map(Some).collect::<Vec<_>>());
    let value = |change: &ChangeRecord, at: usize| change.patch[at]["value"].clone();
    assert_eq!(
        found[1].patch[0],
        json!({"op": "add", "path": "/config/n", "value": value(&found[1], 0)})
    );
    let mut current: Value = value(&found[1], 0);
    for change in &found[2..] {
        assert_eq!(value(change, 0), current, "{change:?}");
        current = value(change, 1);
    }
}

async fn deletes_changes_after_their_age(bench: StoreFixture) {
    let old = ChangeStamp {
        // The first 48 bits are the time of the id.
        id: Uuid::from_u128(5 << 80),
        ..stamp()
    };
    bench
        .change(old, create(&bench.workspace, "a"))
        .await
        .unwrap();
    bench
        .change(stamp(), create(&bench.workspace, "b"))
        .await
        .unwrap();
    let day = Duration::from_hours(24);
    assert_eq!(bench.audit_log().sweep_changes(day).await.unwrap(), 1);
    assert_eq!(bench.audit_log().sweep_changes(day).await.unwrap(), 0);
    let left = oldest_first(&bench).await;
    let names: Vec<_> = left
        .iter()
        .map(|change| change.object_name.as_str())
        .collect();
    assert_eq!(names, ["b"]);
}
