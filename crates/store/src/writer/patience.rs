//! Timeouts of the writer's transactions.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Timeouts of one transaction. A dead connection sends no reply, and the outcome is then unknown. A slow
/// database still replies, so each reply extends the wait up to `whole`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Time out without any reply for this long.
    pub(super) silence: Duration,
    /// Time out in total.
    pub(super) whole: Duration,
}

impl Patience {
    /// Sets the total timeout to 1.5 times `silence`.
    pub(super) fn of(silence: Duration) -> Self {
        Self {
            silence,
            whole: silence * 3 / 2,
        }
    }

    /// Awaits `work` under both timeouts. `None`: timed out. Any wake-up counts as a reply; a queued item may
    /// cause one, and the total timeout still holds.
    pub(super) async fn wait<T>(self, work: impl Future<Output = T>) -> Option<T> {
        let end = Instant::now() + self.whole;
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
            silence.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);

    async fn answers(count: u32, each: Duration) {
        for _ in 0..count {
            sleep(each).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_says_something_is_heard_out_and_what_is_silent_is_not() {
        let patience = Patience::of(PATIENCE);
        let slow = patience.wait(answers(5, PATIENCE / 4)).await;
        assert!(slow.is_some());
        let began = Instant::now();
        assert!(patience.wait(answers(1, PATIENCE * 2)).await.is_none());
        assert_eq!(began.elapsed().as_secs(), PATIENCE.as_secs());
        let silent_later = async {
            answers(1, PATIENCE / 4).await;
            std::future::pending::<()>().await;
        };
        let began = Instant::now();
        assert!(patience.wait(silent_later).await.is_none());
        assert!(began.elapsed() < PATIENCE * 3 / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_no_end_is_given_up_in_time() {
        let patience = Patience::of(PATIENCE);
        let began = Instant::now();
        assert!(patience.wait(answers(9, PATIENCE / 4)).await.is_none());
        assert_eq!(began.elapsed().as_secs(), patience.whole.as_secs());
    }
}
