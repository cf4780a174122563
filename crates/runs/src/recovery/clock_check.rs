//! Comparison of this clock with the database's.

use store::StoreError;

use crate::deps::RunDeps;
use crate::ticks::ticks_every;

/// Larger differences make other replicas refuse the tokens of this one.
const MAX_SKEW_MS: u64 = 5_000;

/// Compares the clocks as often as leases are renewed, independent of the renewal.
pub(super) async fn keep_comparing(deps: &RunDeps) {
    let mut tick = ticks_every(deps.limits.lease / 5);
    let mut are_skewed = false;
    loop {
        tick.tick().await;
        // The lease renewal reports an unreachable database.
        let _ = compare(deps, &mut are_skewed).await;
    }
}

/// Logs when the difference of the clocks exceeds the limit, and when it is small again.
async fn compare(deps: &RunDeps, are_skewed: &mut bool) -> Result<(), StoreError> {
    let before = deps.clock.now_ms();
    let Some(theirs) = deps.store.leases().read_clock().await? else {
        return Ok(());
    };
    let after = deps.clock.now_ms();
    // The database's time may lie anywhere within the duration of the query.
    let skew_ms = theirs - theirs.clamp(before.min(after), after.max(before));
    let exceeds_limit = skew_ms.unsigned_abs() > MAX_SKEW_MS;
    if exceeds_limit && !*are_skewed {
        tracing::error!(
            skew_ms,
            "this clock differs from the database's: run tokens of this replica are refused by \
             others; set both by the same source of time"
        );
    } else if *are_skewed && !exceeds_limit {
        tracing::info!("this clock agrees with the database clock again");
    }
    *are_skewed = exceeds_limit;
    Ok(())
}
