//! What seldom happens to a run while its results come.

use domain::run::Run;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::Inner;
use crate::dispatch::{grace, interrupted};
use crate::live::LiveRun;
use crate::prepare::Prepared;

/// What happens to a run once at most, or hardly ever.
pub(super) enum Rare {
    /// It is somebody else's.
    Lost,
    /// It shall end, or its time to end by itself is over.
    Interrupted,
    /// The gateway stops, and another one can go on with it.
    HandOn,
    /// Nothing may have been heard for as long as is allowed.
    Quiet,
}

/// Each is looked at when it has happened: not for every chunk, as a `select!` would.
pub(super) type RareThings<'a> = FuturesUnordered<BoxFuture<'a, Rare>>;

/// [`Rare::Lost`].
pub(super) fn lost(live: &LiveRun) -> BoxFuture<'_, Rare> {
    Box::pin(live.lost.cancelled().map(|()| Rare::Lost))
}

/// [`Rare::Interrupted`], when the run must end.
pub(super) fn told_to_end<'a>(
    inner: &'a Inner,
    live: &'a LiveRun,
    run: &'a Run,
) -> BoxFuture<'a, Rare> {
    Box::pin(interrupted(inner, live, run).map(|()| Rare::Interrupted))
}

/// [`Rare::HandOn`], as soon as the gateway takes no more runs: what waits for its runner would only hold it up.
pub(super) fn handed_on(inner: &Inner) -> BoxFuture<'_, Rare> {
    Box::pin(inner.stopping.cancelled().map(|()| Rare::HandOn))
}

/// [`Rare::Quiet`], at `at`.
pub(super) fn quiet_until(at: Instant) -> BoxFuture<'static, Rare> {
    Box::pin(tokio::time::sleep_until(at).map(|()| Rare::Quiet))
}

/// [`Rare::Interrupted`], when the grace of a cancelled run is over.
pub(super) fn graced<'a>(
    inner: &'a Inner,
    live: &'a LiveRun,
    prepared: &'a Prepared,
    run: &'a Run,
) -> BoxFuture<'a, Rare> {
    Box::pin(grace(inner, live, prepared, run).map(|()| Rare::Interrupted))
}
