//! Tables after discovery, on both databases.
use crate::support::{StoreFixture, on_both};
use protocol::id::{AgentId, EndpointId};
use store::{
    EndpointRecord, HealthRecord, RunnerStatus, SaveAgent, SaveEndpoint, SaveFailure, SavedAgent,
};
use uuid::Uuid;

on_both!(
    claims_longest_due_check_once,
    unreadable_endpoint_does_not_block_others,
    keeps_absent_runner_with_agents,
    failure_keeps_runners_and_records_health,
    bounds_health_history,
    drops_outdated_discovery_results,
    deletes_objects_removed_from_config,
);

async fn history(bench: &StoreFixture, endpoint: protocol::id::EndpointId) -> Vec<HealthRecord> {
    bench
        .endpoints()
        .list_health(endpoint, None, 1000)
        .await
        .unwrap()
        .items
}

fn failure(endpoint_id: protocol::id::EndpointId, reason: &str, asked_at: i64) -> SaveFailure {
    SaveFailure {
        endpoint_id,
        version: 1,
        health: "unreachable".to_owned(),
        reason: reason.to_owned(),
        asked_at,
        latency_ms: None,
        next_check_at: 100,
        at: asked_at,
    }
}

async fn deletes_objects_removed_from_config(bench: StoreFixture) {
    let (store, workspace) = (&bench.store, bench.workspace.clone());
    let template = bench.endpoint("of-the-api").await;
    let template = store
        .endpoints()
        .find_endpoint(&workspace, template)
        .await
        .unwrap();
    let record = EndpointRecord {
        id: EndpointId(Uuid::now_v7()),
        name: "of-the-file".to_owned(),
        origin: "config".to_owned(),
        ..template.unwrap()
    };
    let configure = SaveEndpoint::Configure(Box::new(record));
    let endpoint = store.write(configure).await.unwrap().unwrap().id;
    let spec = serde_json::json!({"name": "a", "event_types": ["*"], "runner_id": "plugin:a/b/c"});
    let configure = SaveAgent::Configure {
        new_id: AgentId(Uuid::now_v7()),
        workspace: workspace.clone(),
        spec: serde_json::from_value(spec).unwrap(),
        refused: Vec::new(),
        at: 1,
    };
    let SavedAgent::Saved(agent) = store.write(configure).await.unwrap() else {
        panic!("it is not entered");
    };
    let delete_agent = || SaveAgent::Delete {
        id: agent.id,
        workspace: workspace.clone(),
        if_match: None,
    };
    let delete_endpoint = || SaveEndpoint::Delete {
        id: endpoint,
        workspace: workspace.clone(),
    };
    let refused = store.write(delete_agent()).await.unwrap();
    assert_eq!(refused, SavedAgent::ReadOnly);
    store.write(delete_endpoint()).await.unwrap();
    assert!(
        store
            .endpoints()
            .find_endpoint(&workspace, endpoint)
            .await
            .unwrap()
            .is_some()
    );

    let names = Vec::new();
    let gone = SaveEndpoint::DisableUnnamed {
        workspace: workspace.clone(),
        names: names.clone(),
    };
    store.write(gone).await.unwrap();
    let gone = SaveAgent::DisableUnnamed {
        workspace: workspace.clone(),
        names,
        at: 2,
    };
    store.write(gone).await.unwrap();
    let left = store
        .agents()
        .find_agent(&workspace, agent.id)
        .await
        .unwrap();
    assert!(left.is_some_and(|agent| !agent.spec.enabled));
    let deleted = store.write(delete_agent()).await.unwrap();
    assert_eq!(deleted, SavedAgent::Done);
    store.write(delete_endpoint()).await.unwrap();
    assert_eq!(
        store
            .endpoints()
            .find_endpoint(&workspace, endpoint)
            .await
            .unwrap(),
        None
    );
}

async fn unreadable_endpoint_does_not_block_others(bench: StoreFixture) {
    let broken = bench.endpoint("broken").await;
    let readable = bench.endpoint("sound").await;
    let tamper = format!("UPDATE runner_endpoints SET mode = 'malformed' WHERE id = '{broken}'");
    bench.tamper(&tamper).await;
    // The unreadable row is due first, and the limit is one.
    let first = bench.endpoints().due_endpoints(60, 1).await.unwrap();
    assert_eq!(first, []);
    let due = bench.endpoints().due_endpoints(60, 1).await.unwrap();
    let ids: Vec<_> = due.iter().map(|endpoint| endpoint.id).collect();
    assert_eq!(ids, [readable]);
}

async fn claims_longest_due_check_once(bench: StoreFixture) {
    let (first, second) = (
        bench.endpoint("first").await,
        bench.endpoint("second").await,
    );
    let mut later = bench.discovery(first, &[]);
    later.next_check_at = 50;
    bench.write(later).await.unwrap();
    let mut sooner = bench.discovery(second, &[]);
    sooner.next_check_at = 40;
    bench.write(sooner).await.unwrap();

    assert_eq!(bench.endpoints().due_endpoints(39, 9).await.unwrap(), []);
    let due = bench.endpoints().due_endpoints(60, 9).await.unwrap();
    let ids: Vec<_> = due.iter().map(|endpoint| endpoint.id).collect();
    assert_eq!(ids, [second, first]);
    assert_eq!(
        bench.endpoints().due_endpoints(60, 1).await.unwrap().len(),
        1
    );

    let turns = (0..8).map(|turn| bench.endpoints().claim_check(&due[0], 100 + turn));
    let turns = futures_util::future::join_all(turns).await;
    let taken = turns.into_iter().filter(|turn| *turn.as_ref().unwrap());
    assert_eq!(taken.count(), 1);
    let due = bench.endpoints().due_endpoints(60, 9).await.unwrap();
    assert_eq!(due.iter().map(|one| one.id).collect::<Vec<_>>(), [first]);
}

async fn keeps_absent_runner_with_agents(bench: StoreFixture) {
    let (bound, free) = ("plugin:a/b/bound", "plugin:a/b/free");
    let endpoint = bench.endpoint("one").await;
    let both = bench.discovery(endpoint, &[(bound, "1"), (free, "2")]);
    bench.write(both.clone()).await.unwrap();
    let spec = serde_json::json!({"name": "a", "event_types": ["*"], "runner_id": bound});
    let create = SaveAgent::Create {
        id: protocol::id::AgentId(Uuid::now_v7()),
        workspace: bench.workspace.clone(),
        spec: serde_json::from_value(spec).unwrap(),
        by: protocol::principal::PrincipalKind::Gateway.into(),
        at: 1,
    };
    bench.write(create).await.unwrap();

    bench.write(bench.discovery(endpoint, &[])).await.unwrap();
    let left = bench
        .endpoints()
        .runners_of(&bench.workspace, endpoint)
        .await
        .unwrap();
    let left: Vec<_> = left
        .iter()
        .map(|one| (one.id.to_string(), one.status))
        .collect();
    assert_eq!(left, [(bound.to_owned(), RunnerStatus::Absent)]);
    // An absent runner keeps its endpoint and returns when listed again.
    let other = bench.endpoint("other").await;
    let ids = [bound.parse().unwrap()];
    let elsewhere = bench
        .endpoints()
        .runners_elsewhere(&bench.workspace, other, &ids);
    assert_eq!(elsewhere.await.unwrap().len(), 1);
    bench.write(both).await.unwrap();
    let back = bench
        .endpoints()
        .runners_of(&bench.workspace, endpoint)
        .await
        .unwrap();
    assert!(
        back.iter().all(store::RunnerRecord::is_bindable),
        "{back:?}"
    );
    assert_eq!(back.len(), 2);
    let rows = history(&bench, endpoint).await;
    let changes: Vec<_> = rows
        .iter()
        .rev()
        .map(|row| (row.added, row.changed, row.removed))
        .collect();
    assert_eq!(changes, [(2, 0, 0), (0, 0, 2), (2, 0, 0)]);
}

async fn failure_keeps_runners_and_records_health(bench: StoreFixture) {
    let runner = "plugin:a/b/c";
    let endpoint = bench.endpoint("one").await;
    bench
        .write(bench.discovery(endpoint, &[(runner, "1")]))
        .await
        .unwrap();
    bench
        .write(bench.discovery(endpoint, &[(runner, "1")]))
        .await
        .unwrap();
    for reason in ["slow", "slow", "closed"] {
        bench.write(failure(endpoint, reason, 1)).await.unwrap();
    }
    let runners = bench
        .endpoints()
        .runners_of(&bench.workspace, endpoint)
        .await
        .unwrap();
    assert_eq!((runners.len(), runners[0].is_bindable()), (1, true));
    bench
        .write(bench.discovery(endpoint, &[(runner, "1")]))
        .await
        .unwrap();
    bench
        .write(bench.discovery(endpoint, &[(runner, "2")]))
        .await
        .unwrap();
    let rows = history(&bench, endpoint).await;
    let changes: Vec<_> = rows
        .iter()
        .rev()
        .map(|row| {
            (
                row.n,
                row.health.as_str(),
                row.reason.as_deref(),
                row.accepted,
                row.changed,
            )
        })
        .collect();
    assert_eq!(
        changes,
        [
            (1, "healthy", None, 1, 0),
            (2, "unreachable", Some("slow"), 1, 0),
            (3, "unreachable", Some("closed"), 1, 0),
            (4, "healthy", None, 1, 0),
            (5, "healthy", None, 1, 1),
        ]
    );
    let after = bench
        .endpoints()
        .list_health(endpoint, Some(3), 1)
        .await
        .unwrap()
        .items;
    assert_eq!(after.iter().map(|row| row.n).collect::<Vec<_>>(), [2]);
}

async fn bounds_health_history(bench: StoreFixture) {
    let endpoint = bench.endpoint("one").await;
    for number in 1..=205_u32 {
        let reason = format!("reason {number}");
        bench.write(failure(endpoint, &reason, 1)).await.unwrap();
    }
    let rows = history(&bench, endpoint).await;
    assert_eq!(
        (rows.len(), rows[0].n, rows.last().map(|row| row.n)),
        (200, 205, Some(6))
    );
    let delete = store::SaveEndpoint::Delete {
        id: endpoint,
        workspace: bench.workspace.clone(),
    };
    bench.write(delete).await.unwrap();
    assert_eq!(history(&bench, endpoint).await, []);
}

async fn drops_outdated_discovery_results(bench: StoreFixture) {
    let endpoint = bench.endpoint("one").await;
    let mut latest = bench.discovery(endpoint, &[("plugin:a/b/c", "1")]);
    latest.asked_at = 20;
    bench.write(latest.clone()).await.unwrap();
    bench
        .write(failure(endpoint, "requested earlier", 19))
        .await
        .unwrap();
    // A mark that far ahead comes from a clock that was set back.
    latest.asked_at = 100_000;
    bench.write(latest.clone()).await.unwrap();
    let mut set_back = latest.clone();
    set_back.asked_at = 30;
    set_back.next_check_at = 77;
    bench.write(set_back).await.unwrap();
    let due = bench.endpoints().due_endpoints(77, 9).await.unwrap();
    assert_eq!(due.len(), 1);
    latest.version = 2;
    latest.asked_at = 40;
    latest.found.clear();
    bench.write(latest).await.unwrap();
    let found = bench
        .endpoints()
        .find_endpoint(&bench.workspace, endpoint)
        .await
        .unwrap();
    assert_eq!(found.unwrap().health, "healthy");
    let runners = bench
        .endpoints()
        .runners_of(&bench.workspace, endpoint)
        .await
        .unwrap();
    assert_eq!(runners.len(), 1);
    assert_eq!(history(&bench, endpoint).await.len(), 1);
}
