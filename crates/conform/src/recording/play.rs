//! Plays a run of a check from its post to its end.

use domain::manifest::AcceptedManifest;
use tokio::time::Instant;

use super::{RunRecording, read};
use crate::check_harness::{CheckHarness, RunPlan};

impl CheckHarness {
    /// Posts a run and reads it to its end, which the mock host records.
    pub(crate) async fn play(&self, runner: &AcceptedManifest, plan: &RunPlan) -> RunRecording {
        let opened = self.open(runner, plan);
        let posted = self.post(&opened).await;
        let until = Instant::now() + self.options.timeout;
        let recording = read(self, &opened, posted, until).await;
        // A run that its runner ended is closed already.
        self.host.cut(&opened.token);
        recording
    }
}
