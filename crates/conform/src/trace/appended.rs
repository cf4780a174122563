//! Results that are appended call by call after a `202`.

use std::pin::pin;

use tokio::time::Instant;

use super::{End, Reading, Trace};
use api::rehearsal::Appended;
use runner_client::Aside;
use runs::reader::ReaderItem;

impl Reading<'_> {
    /// Reads appended results while the runner is active.
    pub(super) async fn read_appended(mut self, aside: Aside, until: Instant) -> Trace {
        let mut aside = pin!(aside.read_out());
        let mut is_read_out = false;
        loop {
            let heard = self.kit.host.appended(&self.opened.token, until);
            let heard = tokio::select! {
                () = &mut aside, if !is_read_out => {
                    is_read_out = true;
                    continue;
                }
                heard = heard => heard,
            };
            match heard {
                Appended::Results(results) => self.take_appended(results),
                Appended::Unheard(lease) => {
                    self.trace.longest_silence = lease;
                    self.trace.end = End::Idle;
                }
                Appended::Late => self.trace.end = End::Going,
            }
            if self.trace.end != End::NotStarted {
                return self.trace;
            }
        }
    }

    fn take_appended(&mut self, results: Vec<String>) {
        let mut items = Vec::new();
        for raw in results {
            self.trace.leaked |= self.leak.is_in(raw.as_bytes());
            items.push(ReaderItem::Result(raw.into()));
        }
        let results = items.len();
        self.judge_all(items);
        self.kit.host.note_judged(&self.opened.token, results);
    }
}
