//! Control signals of a run while its results stream.

use domain::run::Run;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::inputs::PreparedDispatch;
use crate::interrupts::Interrupts;
use crate::lifecycle::Lifecycle;
use crate::live::LiveRun;

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
