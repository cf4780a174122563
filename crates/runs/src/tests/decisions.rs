//! Decisions about leases, recovery and tasks.

use std::time::Duration;

use protocol::run::RunStatus;
use store::{LeaseFilter, Renewed, ResumePoint, StoreError};
use tokio::time::Instant;

use super::simulation::settings::{run, run_id};
use crate::executor::next_step::{OrphanClaim, claim_of, failure_after};
use crate::live::LiveRegistry;
use crate::recovery::orphans::{AsyncRecovery, failure_of, recovery_of};

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
