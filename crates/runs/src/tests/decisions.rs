//! Decisions about leases, recovery and tasks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use protocol::run::RunStatus;
use runner_client::StartError;
use store::{LeaseFilter, Renewed, ResumePoint, StoreError};
use tokio::time::Instant;

use super::simulation::settings::{manifest, run, run_id, snapshots};
use crate::dispatch::failure::{ResumeDecision, after_failed_restart, after_failed_resume};
use crate::dispatch::resuming::LostConnection;
use crate::executor::next_step::{OrphanClaim, claim_of, failure_after};
use crate::grant::Grant;
use crate::live::LiveRegistry;
use crate::recovery::orphans::{
    AsyncRecovery, StreamRecovery, failure_of, recovery_of, recovery_of_stream,
};

#[test]
fn renewal_keeps_held_and_busy_runs_only() {
    let now = Instant::now();
    let until = now + Duration::from_secs(3);
    let registry = LiveRegistry::default();
    let [held, busy, lost, ending] = [0, 1, 2, 3].map(run_id);
    for id in [held, busy, lost, ending] {
        registry.enter(id).hold_until(now);
    }
    registry.enter(ending).begin_end();
    let mut renewed = Renewed::default();
    renewed.held.insert(held, Some(7));
    renewed.busy.insert(busy);
    assert_eq!(
        registry.renew(&[held, busy, lost, ending], &renewed, until),
        1
    );
    assert!(registry.enter(held).is_held(now) && registry.enter(held).cancel.is_cancelled());
    assert!(!registry.enter(busy).is_held(now));
    let is_lost = |id| registry.enter(id).lost.is_cancelled();
    assert_eq!(
        [held, busy, lost, ending].map(is_lost),
        [false, false, true, false]
    );
}

#[test]
fn replica_without_lock_grants_only_immovable_runs() {
    let now = Instant::now();
    let registry = LiveRegistry::default();
    let runs = [0, 1, 2].map(|event| {
        let snapshot = Arc::new(snapshots()[event].clone());
        let live = registry.enter(run_id(event));
        live.set_grant(Arc::new(Grant::new(run(event, 0, 0, 0), snapshot, 1)));
        live.hold_until(now + Duration::from_secs(3));
        live
    });
    let [_, asynchronous, resumable] = &runs;
    asynchronous.appends.store(true, Ordering::Release);
    resumable.is_resumable.store(true, Ordering::Release);
    let granted = || [0, 1, 2].map(|event| registry.grant(run_id(event), now).is_some());
    assert_eq!(granted(), [true; 3]);
    registry.unlock();
    assert_eq!(granted(), [true, false, false]);
    registry.lock();
    assert_eq!(granted(), [true; 3]);
    runs[0].lost.cancel();
    assert_eq!(granted(), [false, true, true]);
}

#[test]
fn claims_orphans_by_their_status() {
    let claim = |status| claim_of(status, LeaseFilter::Own);
    let taken = Some(OrphanClaim::TakeOver(LeaseFilter::Own));
    assert_eq!(claim(RunStatus::Running), taken);
    for unbegun in [RunStatus::Created, RunStatus::Queued] {
        assert_eq!(claim(unbegun), Some(OrphanClaim::Begin));
    }
    for other in RunStatus::ALL
        .into_iter()
        .filter(|status| status.is_terminal())
    {
        assert_eq!(claim(other), None);
    }
}

#[test]
fn lasting_errors_end_runs_and_transient_ones_wait() {
    assert!(failure_after(&StoreError::Panicked).is_some());
    assert!(failure_after(&StoreError::Unreachable).is_none());
    let point = ResumePoint {
        streamed_through: 0,
        judged_through: 0,
        accepted_through: 0,
        rejections: 0,
        rejected: [].into(),
    };
    assert!(matches!(
        recovery_of(Ok(Some(point))),
        AsyncRecovery::Resume(_)
    ));
    assert!(matches!(recovery_of(Ok(None)), AsyncRecovery::End));
    assert!(matches!(
        recovery_of(Err(StoreError::Panicked)),
        AsyncRecovery::End
    ));
    let away = recovery_of(Err(StoreError::Unreachable));
    assert!(matches!(away, AsyncRecovery::Wait));
}

#[test]
fn orphan_with_cancel_request_ends_as_cancelled() {
    let mut orphan = run(0, 0, 0, 0);
    assert_eq!(failure_of(&orphan).code.as_str(), "host.orphaned");
    orphan.cancel_requested_at = Some(1);
    assert_eq!(failure_of(&orphan).code.as_str(), "cancelled");
}

#[test]
fn loss_without_progress_continues_earlier_one() {
    let begin = Instant::now();
    let first = LostConnection::after(None, 3, begin);
    assert!(!first.is_repeated);
    let later = begin + Duration::from_secs(1);
    let again = LostConnection::after(Some(first), 3, later);
    assert!(again.is_repeated && again.at == begin);
    let progress = LostConnection::after(Some(again), 4, later);
    assert!(!progress.is_repeated && progress.at == later);
}

#[test]
fn only_resumable_streams_are_attached_to() {
    let manifest = |is_resumable| Ok(Some(manifest(is_resumable)));
    for (found, expected) in [
        (manifest(true), StreamRecovery::Attach),
        (manifest(false), StreamRecovery::End),
        (Ok(None), StreamRecovery::End),
        (Err(StoreError::Unreachable), StreamRecovery::Wait),
        (Err(StoreError::Panicked), StreamRecovery::End),
    ] {
        assert_eq!(recovery_of_stream(found), expected);
    }
}

#[test]
fn resume_repeats_passing_refusals_only() {
    let decide = |status| {
        after_failed_resume(&StartError::Refused {
            status,
            retry_after: None,
            excerpt: Vec::new(),
        })
    };
    for status in [409, 429, 500, 503] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(decide(status), ResumeDecision::Repeat);
    }
    assert_eq!(decide(StatusCode::NOT_FOUND), ResumeDecision::RunnerLost);
    for status in [400, 401, 410] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(decide(status), ResumeDecision::Fail);
    }
    let silent = after_failed_resume(&StartError::Silent);
    assert_eq!(silent, ResumeDecision::Repeat);
}

#[test]
fn new_start_repeats_only_posts_that_started_nothing() {
    let refused = |status: u16, wait: Option<u64>| StartError::Refused {
        status: StatusCode::from_u16(status).unwrap(),
        retry_after: wait.map(Duration::from_secs),
        excerpt: Vec::new(),
    };
    let wait = Duration::from_mins(1);
    for (error, expected) in [
        (refused(409, None), ResumeDecision::Repeat),
        (refused(503, Some(1)), ResumeDecision::Repeat),
        (StartError::CircuitOpen { wait }, ResumeDecision::Repeat),
        (refused(503, None), ResumeDecision::Fail),
        (refused(404, None), ResumeDecision::Fail),
        (StartError::Silent, ResumeDecision::Fail),
    ] {
        assert_eq!(after_failed_restart(&error), expected, "{error}");
    }
}
