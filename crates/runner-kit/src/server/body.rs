//! Response body of a run: greeting, results, and heartbeats while silent.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use protocol::result::AgentRunResult;

use crate::frame;
use crate::host::Host;
use crate::server::buffer::{BufferReader, ReadStep};
use crate::server::live::RunRegistration;

/// State that lives while the gateway reads. Dropping it drops the runner's stream.
pub(super) struct ResponseGuard {
    results: BoxStream<'static, AgentRunResult>,
    heartbeat: Duration,
    token_keeper: BoxFuture<'static, Infallible>,
    _live: RunRegistration,
}

impl ResponseGuard {
    pub(super) fn new(
        results: BoxStream<'static, AgentRunResult>,
        heartbeat: Duration,
        host: Host,
        live: RunRegistration,
    ) -> Self {
        let token_keeper = async move { host.keep_token_fresh().await }.boxed();
        Self {
            results,
            heartbeat,
            token_keeper,
            _live: live,
        }
    }

    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        let frames = stream::unfold(self, |mut frames| async move {
            let frame = tokio::select! { biased;
                // First and biased: a heartbeat must not delay a result that is ready.
                result = frames.results.next() => frame::event(&result?),
                () = tokio::time::sleep(frames.heartbeat) => frame::HEARTBEAT,
                // Polled here, so that the token stays valid while the runner makes no host call.
                never = &mut frames.token_keeper => match never {},
            };
            Some((frame, frames))
        });
        // Sent at once: the gateway must learn that the runner has started.
        stream::iter([frame::GREETING]).chain(frames).map(Ok)
    }
}

/// Response body of one connection of a resumable run. Dropping it detaches the connection.
pub(super) fn of_reader(
    reader: BufferReader,
    heartbeat: Duration,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let frames = stream::unfold(Some(reader), move |reader| async move {
        let reader = reader?;
        let step = tokio::select! { biased;
            step = reader.next() => step,
            () = tokio::time::sleep(heartbeat) => ReadStep::Frame(frame::HEARTBEAT),
        };
        match step {
            ReadStep::Frame(frame) => Some((Ok(frame), Some(reader))),
            ReadStep::End => None,
            // An error closes the connection: a clean end would be the end of the run.
            ReadStep::Superseded => Some((Err(io::ErrorKind::ConnectionAborted.into()), None)),
        }
    });
    stream::iter([Ok(frame::GREETING)]).chain(frames)
}
