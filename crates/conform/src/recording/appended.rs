//! Results that are appended call by call after a `202`.

use std::pin::pin;

use tokio::time::Instant;

use super::{End, RunReader, RunRecording};
use crate::mock_host::AppendStep;
use runner_client::TrailingBody;
use runs::reader::ReaderItem;

impl RunReader<'_> {
    /// Reads appended results while the runner is active.
    pub(super) async fn read_appended(
        mut self,
        trailing: TrailingBody,
        until: Instant,
    ) -> RunRecording {
        let mut trailing = pin!(trailing.discard());
        let mut is_read_out = false;
        loop {
            let step = self.check_harness.host.appended(&self.opened.token, until);
            let step = tokio::select! {
                // The body of the 202 is read in parallel, so that its connection is not blocked.
                () = &mut trailing, if !is_read_out => {
                    is_read_out = true;
                    continue;
                }
                step = step => step,
            };
            match step {
                AppendStep::AppendedBatch(results) => self.take_appended(results),
                AppendStep::LeaseExpired(lease) => {
                    self.recording.longest_silence = lease;
                    self.recording.end = End::Idle;
                }
                AppendStep::Late => self.recording.end = End::Going,
            }
            if self.recording.end != End::NotStarted {
                return self.recording;
            }
        }
    }

    fn take_appended(&mut self, results: Vec<String>) {
        let mut items = Vec::new();
        for raw in results {
            self.recording.leaked |= self.leak.is_in(raw.as_bytes());
            items.push(ReaderItem::Result(raw.into()));
        }
        let results = items.len();
        self.validate_all(items);
        // The runner gets the answer to its append only now, as from the gateway.
        self.check_harness
            .host
            .mark_processed(&self.opened.token, results);
    }
}
