//! Pauses: held dispatches, and their release at a rate.
use std::time::Duration;

use crate::support::{AGENT, StoreFixture, cancel_request, dispatch, on_both};
use domain::run::Run;
use protocol::id::{AgentId, WorkspaceId};
use protocol::pause::PauseMode;
use protocol::principal::PrincipalKind;
use store::{
    Dispatch, DispatchPurpose, Dispatched, PauseRecord, PauseScope, ReleaseHeld, ReleasedRuns,
    ResumePause, SetPause,
};
use uuid::Uuid;

on_both!(
    holds_only_first_dispatch_of_scope,
    cancelled_and_ending_runs_pass_pause,
    lists_held_runs_as_overdue_only,
    releases_oldest_runs_at_rate,
    replaces_and_reads_pauses,
);

fn pause(scope: PauseScope, mode: PauseMode) -> SetPause {
    SetPause(PauseRecord {
        scope,
        mode,
        reason: Some("incident".to_owned()),
        paused_by: PrincipalKind::Gateway.into(),
        paused_at: 5_000,
        runs_per_second: None,
        released_through: 0,
    })
}

async fn is_owned(bench: &StoreFixture, dispatch: Dispatch) -> bool {
    let dispatched = bench.write(dispatch).await.unwrap();
    matches!(dispatched, Dispatched::Owned(_))
}

async fn is_dispatched(bench: &StoreFixture, run: &Run) -> bool {
    is_owned(bench, dispatch(run)).await
}

async fn holds_only_first_dispatch_of_scope(bench: StoreFixture) {
    let running = bench.running("e-1").await;
    let elsewhere = WorkspaceId("elsewhere".to_owned());
    let other = AgentId(Uuid::from_u128(7));
    let foreign = [
        PauseScope::Workspace(elsewhere),
        PauseScope::Agent {
            workspace: bench.workspace.clone(),
            agent: other,
        },
    ];
    for scope in foreign {
        assert!(bench.write(pause(scope, PauseMode::Hold)).await.unwrap());
    }
    let free = bench.created("e-2").await;
    assert!(is_dispatched(&bench, &free).await);
    for (event, scope) in [
        ("e-3", PauseScope::All),
        ("e-4", PauseScope::Workspace(bench.workspace.clone())),
        (
            "e-5",
            PauseScope::Agent {
                workspace: bench.workspace.clone(),
                agent: AGENT,
            },
        ),
    ] {
        let run = bench.created(event).await;
        bench
            .write(pause(scope.clone(), PauseMode::Stop))
            .await
            .unwrap();
        assert!(!is_dispatched(&bench, &run).await, "{scope:?}");
        let resume = ResumePause {
            scope: scope.clone(),
            runs_per_second: 1000,
        };
        assert!(bench.write(resume).await.unwrap().is_some());
        assert!(!is_dispatched(&bench, &run).await, "not yet released");
        while !bench
            .write(ReleaseHeld(scope.clone()))
            .await
            .unwrap()
            .is_last
        {}
        assert!(is_dispatched(&bench, &run).await, "{scope:?}");
    }
    // A retry of a live run is no first dispatch.
    bench
        .write(pause(PauseScope::All, PauseMode::Freeze))
        .await
        .unwrap();
    let again = Dispatch {
        attempt: 2,
        ..dispatch(&running)
    };
    assert!(is_owned(&bench, again).await);
}

async fn cancelled_and_ending_runs_pass_pause(bench: StoreFixture) {
    bench
        .write(pause(PauseScope::All, PauseMode::Hold))
        .await
        .unwrap();
    let ending = Dispatch {
        purpose: DispatchPurpose::End,
        ..dispatch(&bench.created("e-1").await)
    };
    assert!(is_owned(&bench, ending).await);
    let cancelled = bench.created("e-2").await;
    let waiting = || bench.runs().created_runs(None, 10);
    assert!(waiting().await.unwrap().is_empty());
    bench
        .runs()
        .request_cancel(&bench.workspace, cancelled.id, cancel_request(), 3_000)
        .await
        .unwrap();
    let found = waiting().await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(is_dispatched(&bench, &cancelled).await);
}

async fn lists_held_runs_as_overdue_only(bench: StoreFixture) {
    let run = bench.created("e-1").await;
    let overdue = || bench.runs().overdue_runs(Duration::from_mins(1), 10);
    let waiting = || bench.runs().created_runs(None, 10);
    assert!(overdue().await.unwrap().is_empty());
    assert_eq!(waiting().await.unwrap().len(), 1);
    bench
        .write(pause(PauseScope::All, PauseMode::Hold))
        .await
        .unwrap();
    // The fixture creates runs long ago.
    assert_eq!(overdue().await.unwrap()[0].id, run.id);
    assert!(waiting().await.unwrap().is_empty());
    let held = bench.agents().count_held(&bench.workspace).await.unwrap();
    assert_eq!(held.into_iter().collect::<Vec<_>>(), [(AGENT, 1)]);
}

async fn releases_oldest_runs_at_rate(bench: StoreFixture) {
    let scope = PauseScope::Workspace(bench.workspace.clone());
    let release = || bench.write(ReleaseHeld(scope.clone()));
    assert_eq!(release().await.unwrap(), ReleasedRuns::default());
    bench
        .write(pause(scope.clone(), PauseMode::Hold))
        .await
        .unwrap();
    let mut created = Vec::new();
    for (number, event) in ["e-1", "e-2", "e-3"].into_iter().enumerate() {
        let run = bench.created(event).await;
        let at = 100 + number;
        let sql = format!("UPDATE runs SET created_at = {at} WHERE id = '{}'", run.id);
        bench.tamper(&sql).await;
        created.push(run.id);
    }
    // A pause that is not resuming releases nothing.
    assert_eq!(release().await.unwrap(), ReleasedRuns::default());
    let resume = ResumePause {
        scope: scope.clone(),
        runs_per_second: 20,
    };
    let resumed = bench.write(resume).await.unwrap().unwrap();
    assert_eq!(resumed.mode, PauseMode::Resuming);
    let begun = std::time::Instant::now();
    let mut released = Vec::new();
    loop {
        let step = release().await.unwrap();
        released.extend(step.runs.iter().map(|run| run.id));
        if step.is_last {
            break;
        }
    }
    assert_eq!(released, created);
    // The first run is due at once, each further one after 50 ms.
    assert!(begun.elapsed() >= Duration::from_millis(100));
    assert!(bench.agents().all_pauses().await.unwrap().is_empty());
}

async fn replaces_and_reads_pauses(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let scope = PauseScope::Agent {
        workspace: bench.workspace.clone(),
        agent: AGENT,
    };
    for mode in [PauseMode::Hold, PauseMode::Freeze] {
        let set = pause(scope.clone(), mode);
        let expected = set.0.clone();
        assert!(bench.write(set).await.unwrap());
        assert_eq!(bench.agents().all_pauses().await.unwrap(), [expected]);
    }
    let absent = ResumePause {
        scope: PauseScope::All,
        runs_per_second: 1,
    };
    assert_eq!(bench.write(absent).await.unwrap(), None);
    let running = bench.agents().running_runs(&scope, 10).await.unwrap();
    assert_eq!(running[0].id, run.id);
}
