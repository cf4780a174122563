//! Result stream of a run: numbered, with exactly one terminal result.

use std::panic::AssertUnwindSafe;
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use protocol::result::{AgentRunResult, ResultType};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::results;
use crate::runner::{CANCELLED, ResultStream, RunError};
use crate::signal::Signal;

/// Sender of a runner's results. A clone may outlive the work; its later results are dropped.
#[derive(Clone, Debug)]
pub struct ResultSender(mpsc::Sender<AgentRunResult>);

impl ResultSender {
    /// Sends one result. Waits while the gateway does not read, at most until the work ends.
    pub async fn send(&self, result: AgentRunResult) {
        // The receiver is closed: the run has its terminal result, or its work is dropped.
        let _ = self.0.send(result).await;
    }
}

/// Builds a result stream from an async block; the block runs only while the stream is polled.
///
/// ```
/// use runner_kit::{ResultStream, RunHandle, results, stream};
///
/// fn answer(run: RunHandle) -> ResultStream {
///     stream(|out| async move {
///         let record = run.until_cancelled(run.host.run()).await??;
///         out.send(results::completed(format!("this is run {}", record.run_id))).await;
///         Ok(())
///     })
/// }
/// ```
pub fn stream<Work>(work: impl FnOnce(ResultSender) -> Work) -> ResultStream
where
    Work: Future<Output = Result<(), RunError>> + Send + 'static,
{
    // Capacity of one: a runner is at most one result ahead of its reader.
    let (sender, mut sent) = mpsc::channel(1);
    // Panics are caught here, too, so that earlier results still arrive.
    let mut work = Some(
        AssertUnwindSafe(work(ResultSender(sender)))
            .catch_unwind()
            .boxed(),
    );
    let mut failure = None;
    stream::poll_fn(move |context| {
        if let Some(running) = &mut work {
            // Results come before the work's outcome, so that none is lost when it ends.
            if let Poll::Ready(Some(result)) = sent.poll_recv(context) {
                return Poll::Ready(Some(Ok(result)));
            }
            let Poll::Ready(outcome) = running.as_mut().poll(context) else {
                // The work may have sent a result during this poll; a second look registers the waker, too.
                return match sent.poll_recv(context) {
                    Poll::Ready(Some(result)) => Poll::Ready(Some(Ok(result))),
                    Poll::Ready(None) | Poll::Pending => Poll::Pending,
                };
            };
            failure = outcome.unwrap_or_else(|_| Err(RunError::panicked())).err();
            work = None;
            // A clone may wait for the end of this stream; the stream does not wait for it.
            sent.close();
        }
        let waiting = sent.try_recv().ok().map(Ok);
        Poll::Ready(waiting.or_else(|| failure.take().map(Err)))
    })
    .boxed()
}

/// Results for the wire: all with `run_id`, numbered from 1, with one terminal result at the end.
pub(crate) fn finish(
    run_id: String,
    signal: Signal,
    results: ResultStream,
) -> impl Stream<Item = AgentRunResult> + Send {
    let guarded = AssertUnwindSafe(results).catch_unwind().boxed();
    stream::unfold((Some(guarded), 1), move |(guarded, sequence)| {
        // The future of one step must not borrow from the closure.
        let (run_id, signal) = (run_id.clone(), signal.clone());
        async move {
            let mut guarded = guarded?;
            let mut result = next_result(&mut guarded, &signal, &run_id).await;
            // The runner only saw its token fire. The gateway did not cancel, so the event may be sent again.
            if signal.is_shutdown() && is_cancelled(&result) {
                result.data = results::run_failed(RunError::shutdown()).data;
            }
            let is_terminal = is_terminal(&result);
            result.run_id = run_id;
            result.sequence = Some(sequence);
            Some((result, ((!is_terminal).then_some(guarded), sequence + 1)))
        }
    })
}

type Guarded = BoxStream<'static, std::thread::Result<Result<AgentRunResult, RunError>>>;

async fn next_result(guarded: &mut Guarded, signal: &Signal, run_id: &str) -> AgentRunResult {
    let failure = match guarded.next().await {
        Some(Ok(Ok(result))) => return result,
        None if !signal.token().is_cancelled() => return results::run_completed(),
        None => RunError::cancelled(),
        Some(Ok(Err(failure))) => failure,
        Some(Err(_)) => RunError::panicked(),
    };
    tracing::warn!(run.id = run_id, code = failure.code, "run {run_id} failed");
    results::run_failed(failure)
}

/// True for the last result of a run.
pub(crate) fn is_terminal(result: &AgentRunResult) -> bool {
    ResultType::parse(&result.kind).is_some_and(ResultType::is_terminal)
}

/// True for the terminal result of a cancelled run.
fn is_cancelled(result: &AgentRunResult) -> bool {
    let code = result.data.get("code").and_then(Value::as_str);
    result.kind == ResultType::RunFailed.as_str() && code == Some(CANCELLED)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use protocol::message::LlmTokenUsage;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// Checks types of results and the failure code. Sequences must be 1..n.
    async fn check(results: ResultStream, cancelled: bool, expected: &[&str], code: Option<&str>) {
        let signal = Signal::new(CancellationToken::new());
        if cancelled {
            signal.cancel();
        }
        let sent: Vec<_> = finish("r-1".to_owned(), signal, results).collect().await;
        let kinds: Vec<_> = sent.iter().map(|result| result.kind.as_str()).collect();
        assert_eq!(kinds, expected);
        for (index, result) in sent.iter().enumerate() {
            assert_eq!(result.sequence, Some(index as u64 + 1));
            assert_eq!(result.run_id, "r-1");
        }
        let last = sent.last().unwrap();
        assert_eq!(last.data.get("code").and_then(|code| code.as_str()), code);
    }

    #[tokio::test]
    async fn ends_every_stream_with_one_terminal() {
        let words = || stream::iter([Ok(results::delta("a")), Ok(results::completed("a"))]);
        let all = ["message.delta", "message.completed", "run.completed"];
        check(words().boxed(), false, &all, None).await;
        check(stream::empty().boxed(), false, &["run.completed"], None).await;

        let own = words().chain(stream::iter([
            Ok(results::run_failed(RunError::new("mine", "no"))),
            Ok(results::delta("too late")),
            Ok(results::run_completed()),
        ]));
        let all = ["message.delta", "message.completed", "run.failed"];
        check(own.boxed(), false, &all, Some("mine")).await;
    }

    #[tokio::test]
    async fn fails_runs_on_errors_panics_and_cancellation() {
        let failing = stream::iter([Ok(results::delta("a")), Err(RunError::exception("broken"))]);
        let all = ["message.delta", "run.failed"];
        check(failing.boxed(), false, &all, Some("runner.exception")).await;

        let panicking = stream(|out| async move {
            out.send(results::delta("a")).await;
            panic!("on purpose");
        });
        check(panicking, false, &all, Some("runner.exception")).await;

        let silent = stream::empty().boxed();
        check(silent, true, &["run.failed"], Some("cancelled")).await;
    }

    #[tokio::test]
    async fn reports_shutdown_for_uncancelled_runs() {
        let usage = Some(LlmTokenUsage {
            total_tokens: Some(7),
            ..LlmTokenUsage::default()
        });
        let ended = AgentRunResult {
            usage: usage.clone(),
            ..results::run_failed(RunError::cancelled())
        };
        let ends: [(ResultStream, _, &str); 4] = [
            (stream::iter([Ok(ended)]).boxed(), usage, "runner.shutdown"),
            (
                stream::iter([Err(RunError::cancelled())]).boxed(),
                None,
                "runner.shutdown",
            ),
            (stream::empty().boxed(), None, "runner.shutdown"),
            (
                stream::iter([Err(RunError::new("mine", "no"))]).boxed(),
                None,
                "mine",
            ),
        ];
        for (results, usage, code) in ends {
            let signal = Signal::new(CancellationToken::new());
            signal.token().cancel();
            let sent: Vec<_> = finish("r-1".to_owned(), signal, results).collect().await;
            assert_eq!((sent.len(), &sent[0].usage), (1, &usage));
            assert_eq!(sent[0].data["code"], code);
            assert_eq!(sent[0].data["retryable"], code == "runner.shutdown");
        }
        // Work that finished before the stop signal counts.
        let signal = Signal::new(CancellationToken::new());
        signal.token().cancel();
        let done = stream::iter([Ok(results::run_completed())]).boxed();
        let sent: Vec<_> = finish("r-1".to_owned(), signal, done).collect().await;
        assert_eq!(sent[0].kind, "run.completed");
    }

    #[tokio::test]
    async fn delivers_results_before_error() {
        let failing = stream(|out| async move {
            for word in ["a", "b", "c"] {
                out.send(results::delta(word)).await;
            }
            drop(out);
            tokio::task::yield_now().await;
            Err(RunError::new("mine", "no").retryable())
        });
        let all = [
            "message.delta",
            "message.delta",
            "message.delta",
            "run.failed",
        ];
        check(failing, false, &all, Some("mine")).await;
    }

    #[tokio::test]
    async fn ends_stream_despite_surviving_sender_clones() {
        for fails in [false, true] {
            let (hold, held) = tokio::sync::oneshot::channel();
            let working = stream(move |out| async move {
                out.send(results::delta("a")).await;
                out.send(results::delta("b")).await;
                let _ = hold.send(out);
                if fails {
                    return Err(RunError::new("mine", "no"));
                }
                Ok(())
            });
            let (end, code) = if fails {
                ("run.failed", Some("mine"))
            } else {
                ("run.completed", None)
            };
            let all = ["message.delta", "message.delta", end];
            let outliving = async {
                check(working, false, &all, code).await;
                let out = held.await.unwrap();
                out.send(results::delta("too late")).await;
            };
            let ended = tokio::time::timeout(Duration::from_secs(10), outliving).await;
            assert!(
                ended.is_ok(),
                "the run waits for the clone, failing: {fails}"
            );
        }
    }

    #[tokio::test]
    async fn ignores_pending_sends_of_clones_at_end() {
        let (hold, held) = tokio::sync::oneshot::channel();
        let working = stream(move |out| async move {
            let mut full = Box::pin(async move {
                out.send(results::delta("a")).await;
                out.send(results::delta("b")).await;
            });
            assert!(futures_util::poll!(&mut full).is_pending());
            let _ = hold.send(full);
            Ok(())
        });
        let all = ["message.delta", "run.completed"];
        let ending = async {
            check(working, false, &all, None).await;
            held.await.unwrap().await;
        };
        let ended = tokio::time::timeout(Duration::from_secs(10), ending).await;
        assert!(ended.is_ok(), "the run waits for who waits for its reader");
    }
}
