//! What is looked at for whoever watches from outside.

use std::collections::HashMap;
use std::time::Duration;

use domain::breaker::Circuit;
use protocol::id::{DEFAULT_WORKSPACE, EndpointId, WorkspaceId};
use store::DatabaseCondition;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::Runs;
use telemetry::metrics::{self, Breaker, Here};

/// Between two looks at the database. However often somebody asks, it is looked at no more often.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// A database that has not answered by then is not ready.
const PATIENCE: Duration = Duration::from_secs(2);

/// The label of an endpoint: its name, which is unique in its workspace, with the workspace before it unless that is
/// the default one.
pub(crate) fn endpoint_label(workspace: &WorkspaceId, name: &str) -> String {
    if workspace.as_str() == DEFAULT_WORKSPACE {
        name.to_owned()
    } else {
        format!("{workspace}/{name}")
    }
}

impl Runs {
    /// Looks at the database, and has `settle` put in order what was counted, until the process stops.
    pub async fn keep_gauges(&self, settle: impl Fn()) {
        let mut tick = interval(BETWEEN_LOOKS);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing = HashMap::new();
        loop {
            tokio::select! {
                () = self.0.closing.cancelled() => return,
                _ = tick.tick() => {}
            }
            self.look().await;
            self.look_at_circuits(&mut failing).await;
            settle();
        }
    }

    async fn look(&self) {
        let store = &self.0.store;
        let is_sound = timeout(PATIENCE, store.condition()).await == Ok(DatabaseCondition::Healthy);
        metrics::ready_is(is_sound && !self.0.stopping.is_cancelled());
        // What was counted last stands until the database answers again.
        if let Ok(Ok(counts)) = timeout(PATIENCE, store.runs().count_active_runs()).await {
            for (status, count) in counts {
                metrics::runs_are(status.as_str(), count);
            }
        }
    }

    /// `failing`: the names of the endpoints that were told not to be closed.
    async fn look_at_circuits(&self, failing: &mut HashMap<EndpointId, String>) {
        let circuits: HashMap<_, _> = self.open_circuits().into_iter().collect();
        for id in circuits.keys() {
            if !failing.contains_key(id)
                && let Ok(Ok(Some((workspace, name)))) =
                    timeout(PATIENCE, self.0.store.endpoints().find_endpoint_name(*id)).await
            {
                failing.insert(*id, endpoint_label(&workspace, &name));
            }
        }
        failing.retain(|id, name| {
            let circuit = circuits.get(id).copied().unwrap_or(Circuit::Closed);
            metrics::breaker_is(
                name,
                match circuit {
                    Circuit::Closed => Breaker::Closed,
                    Circuit::HalfOpen => Breaker::HalfOpen,
                    Circuit::Open => Breaker::Open,
                },
            );
            circuit != Circuit::Closed
        });
    }

    /// What can be told without the database.
    pub fn here(&self) -> Here {
        Here {
            live_runs: self.0.live.count(),
            queued_writes: self.0.store.queued_writes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_tell_endpoints_of_workspaces_apart() {
        let label = |workspace: &str| endpoint_label(&WorkspaceId(workspace.to_owned()), "stub");
        assert_eq!(label(DEFAULT_WORKSPACE), "stub");
        assert_eq!(label("team-a"), "team-a/stub");
    }
}
