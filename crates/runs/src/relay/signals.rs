//! Control signals of a run while its results stream.

use std::collections::HashSet;
use std::pin::pin;
use std::time::Duration;

use domain::run::Run;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use store::PlatformActionRecord;
use tokio::time::Instant;

use crate::deps::RunDeps;
use crate::inputs::PreparedDispatch;
use crate::interrupts::Interrupts;
use crate::lifecycle::Lifecycle;
use crate::live::LiveRun;
use crate::notifier::RunWaiter;

/// Minimum pause between two looks for platform actions: notifications may come in bursts.
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);
/// Interval of looks for platform actions without a notification.
const ACTION_INTERVAL: Duration = Duration::from_secs(5);

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
    /// Host calls have requested these platform actions.
    Actions(AnnouncedActions),
}

/// Platform actions of host calls that get their events.
#[derive(Default)]
pub(super) struct AnnouncedActions {
    /// Without an event so far.
    pub(super) found: Vec<PlatformActionRecord>,
    /// Ids of all so far: their events may wait for their commit.
    seen: HashSet<String>,
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

/// [`RunSignal::Actions`], when host calls have requested platform actions. `after`: those before.
pub(super) fn requested_actions<'a>(
    deps: &'a RunDeps,
    run: &'a Run,
    after: AnnouncedActions,
) -> BoxFuture<'a, RunSignal> {
    Box::pin(async move {
        let mut seen = after.seen;
        let waiter = RunWaiter::of(&deps.notifier, run.id);
        loop {
            let notifications = waiter.notifications();
            let mut notified = pin!(notifications.notified());
            notified.as_mut().enable();
            let looked_at = Instant::now();
            // An outage delays the events; the next look finds them.
            let unannounced = deps.store.interactions().unannounced_actions(run.id).await;
            let mut found = unannounced.unwrap_or_default();
            found.retain(|action| !seen.contains(&action.id));
            if !found.is_empty() {
                seen.extend(found.iter().map(|action| action.id.clone()));
                return RunSignal::Actions(AnnouncedActions { found, seen });
            }
            tokio::select! {
                () = &mut notified => tokio::time::sleep_until(looked_at + BETWEEN_LOOKS).await,
                () = tokio::time::sleep_until(looked_at + ACTION_INTERVAL) => {}
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
