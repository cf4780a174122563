//! Timeouts of the writer's transactions.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::StoreError;

/// Timeouts of one transaction. A dead connection sends no reply, and the outcome is then unknown. A slow
/// database still replies, so each reply extends the wait up to `total`.
#[derive(Clone, Copy, Debug)]
pub(super) struct TxTimeout {
    /// Time out without any reply for this long.
    pub(super) silence: Duration,
    /// Time out in total.
    pub(super) total: Duration,
}

impl TxTimeout {
    /// Sets the total timeout to 1.5 times `silence`.
    pub(super) fn of(silence: Duration) -> Self {
        Self {
            silence,
            total: silence * 3 / 2,
        }
    }

    /// Awaits a transaction under both timeouts.
    pub(super) async fn bound<T>(
        self,
        transaction: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let began = Instant::now();
        let outcome = self.wait(transaction).await;
        outcome.unwrap_or_else(|| {
            // The connection may be dead, and the commit's outcome unknown: report it as unreachable.
            tracing::error!("transaction timed out after {:?}", began.elapsed());
            Err(StoreError::Unreachable)
        })
    }

    /// Awaits `work` under both timeouts. `None`: timed out. Any wake-up counts as a reply; a queued item may
    /// cause one, and the total timeout still holds.
    async fn wait<T>(self, work: impl Future<Output = T>) -> Option<T> {
        let end = Instant::now() + self.total;
        let (mut work, mut silence) = (pin!(work), pin!(sleep(self.silence)));
        poll_fn(|context| {
            if let ready @ Poll::Ready(_) = work.as_mut().poll(context).map(Some) {
                return ready;
            }
            if silence.as_mut().poll(context).is_pending() {
                // A reply caused the wake-up: restart the silence timeout.
                let next = Instant::now() + self.silence;
                silence.as_mut().reset(next.min(end));
            }
            // Polled again, because only a poll after the reset registers the waker.
            silence.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(2);

    async fn replies(count: u32, each: Duration) {
        for _ in 0..count {
            sleep(each).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn times_out_on_silence_only() {
        let tx_timeout = TxTimeout::of(SILENCE);
        let slow = tx_timeout.wait(replies(5, SILENCE / 4)).await;
        assert!(slow.is_some());
        let began = Instant::now();
        assert!(tx_timeout.wait(replies(1, SILENCE * 2)).await.is_none());
        assert_eq!(began.elapsed().as_secs(), SILENCE.as_secs());
        let silent_later = async {
            replies(1, SILENCE / 4).await;
            std::future::pending::<()>().await;
        };
        let began = Instant::now();
        assert!(tx_timeout.wait(silent_later).await.is_none());
        assert!(began.elapsed() < SILENCE * 3 / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn times_out_in_total() {
        let tx_timeout = TxTimeout::of(SILENCE);
        let began = Instant::now();
        assert!(tx_timeout.wait(replies(9, SILENCE / 4)).await.is_none());
        assert_eq!(began.elapsed().as_secs(), tx_timeout.total.as_secs());
    }
}
