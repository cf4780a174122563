//! Control signals of a run while its results stream.

use std::collections::HashSet;
use std::pin::pin;
use std::time::Duration;

use domain::authorization::{AuthorizationSnapshot, has_amendable_tools, has_granted_actions};
use domain::run::Run;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use store::{ApprovalRecord, PlatformActionRecord};
use tokio::time::Instant;

use crate::deps::RunDeps;
use crate::inputs::PreparedDispatch;
use crate::interrupts::Interrupts;
use crate::lifecycle::Lifecycle;
use crate::live::LiveRun;
use crate::notifier::RunWaiter;

/// Minimum pause between two looks for rows without an event: notifications may come in bursts.
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);
/// Interval of looks for rows without an event, without a notification.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// A control signal, at most one of each kind or rarely more.
pub(super) enum RunSignal {
    /// Another process owns the run.
    Lost,
    /// The run must end, or its grace is over.
    Interrupted,
    /// The gateway stops, and another one can resume the run.
    Release,
    /// The maximum silence may be over.
    Silent,
    /// Rows of the run need their events.
    Unannounced(AnnouncedRows),
}

/// A row of the run whose event the ledger lacks: other processes write rows, and only the run's task numbers the
/// ledger.
pub(crate) enum Unannounced {
    /// A host call has requested it.
    Action(PlatformActionRecord),
    /// A person has allowed it.
    Amendment(ApprovalRecord),
}

impl Unannounced {
    fn id(&self) -> String {
        match self {
            Self::Action(action) => action.id.clone(),
            Self::Amendment(amendment) => amendment.id.to_string(),
        }
    }
}

/// Rows that get their events.
#[derive(Default)]
pub(super) struct AnnouncedRows {
    /// Without an event so far.
    pub(super) found: Vec<Unannounced>,
    /// Ids of all so far: their events may wait for their commit.
    seen: HashSet<String>,
}

/// Rows of the run without an event. Reads only those that its grant makes possible.
async fn find_unannounced(
    deps: &RunDeps,
    run: &Run,
    snapshot: &AuthorizationSnapshot,
) -> Vec<Unannounced> {
    let interactions = deps.store.interactions();
    let mut found = Vec::new();
    // An outage delays the events; the next look finds them.
    if has_granted_actions(snapshot) {
        let actions = interactions.unannounced_actions(run.id).await;
        let actions = actions.unwrap_or_default().into_iter();
        found.extend(actions.map(Unannounced::Action));
    }
    if has_amendable_tools(snapshot) {
        found.extend(find_amendments(deps, run).await);
    }
    found
}

/// Amendments of the run without an event.
pub(super) async fn find_amendments(deps: &RunDeps, run: &Run) -> Vec<Unannounced> {
    let amendments = deps
        .store
        .interactions()
        .unannounced_amendments(run.id)
        .await;
    let amendments = amendments.unwrap_or_default().into_iter();
    amendments.map(Unannounced::Amendment).collect()
}

/// Signals in a set of their own: `select!` would poll each of them for every chunk.
pub(super) type RunSignals<'a> = FuturesUnordered<BoxFuture<'a, RunSignal>>;

/// [`RunSignal::Lost`].
pub(super) fn lost(live: &LiveRun) -> BoxFuture<'_, RunSignal> {
    Box::pin(live.lost.cancelled().map(|()| RunSignal::Lost))
}

/// [`RunSignal::Interrupted`], when the run must end.
pub(super) fn interrupted<'a>(
    interrupts: &'a Interrupts,
    live: &'a LiveRun,
    run: &'a Run,
) -> BoxFuture<'a, RunSignal> {
    Box::pin(
        interrupts
            .interrupted(live, run)
            .map(|()| RunSignal::Interrupted),
    )
}

/// [`RunSignal::Release`], as soon as the gateway takes no more runs. An async run would only delay the stop.
pub(super) fn released(lifecycle: &Lifecycle) -> BoxFuture<'_, RunSignal> {
    Box::pin(lifecycle.stopping.cancelled().map(|()| RunSignal::Release))
}

/// [`RunSignal::Unannounced`], when rows of the run need their events. `after`: those before.
pub(super) fn unannounced_rows<'a>(
    deps: &'a RunDeps,
    run: &'a Run,
    snapshot: &'a AuthorizationSnapshot,
    after: AnnouncedRows,
) -> BoxFuture<'a, RunSignal> {
    Box::pin(async move {
        let mut seen = after.seen;
        let waiter = RunWaiter::of(&deps.notifier, run.id);
        loop {
            let notifications = waiter.notifications();
            let mut notified = pin!(notifications.notified());
            notified.as_mut().enable();
            let looked_at = Instant::now();
            let mut found = find_unannounced(deps, run, snapshot).await;
            found.retain(|row| !seen.contains(&row.id()));
            if !found.is_empty() {
                seen.extend(found.iter().map(Unannounced::id));
                return RunSignal::Unannounced(AnnouncedRows { found, seen });
            }
            tokio::select! {
                () = &mut notified => tokio::time::sleep_until(looked_at + BETWEEN_LOOKS).await,
                () = tokio::time::sleep_until(looked_at + LOOK_INTERVAL) => {}
            }
        }
    })
}

/// [`RunSignal::Silent`], at `at`.
pub(super) fn silence_at(at: Instant) -> BoxFuture<'static, RunSignal> {
    Box::pin(tokio::time::sleep_until(at).map(|()| RunSignal::Silent))
}

/// [`RunSignal::Interrupted`], when the grace of a cancelled run is over.
pub(super) fn grace_over<'a>(
    interrupts: &'a Interrupts,
    live: &'a LiveRun,
    prepared: &'a PreparedDispatch,
    run: &'a Run,
) -> BoxFuture<'a, RunSignal> {
    Box::pin(
        interrupts
            .grace(live, prepared, run)
            .map(|()| RunSignal::Interrupted),
    )
}
