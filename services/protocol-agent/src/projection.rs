//! View of graphs for the user: results of type `x.graph.projection`. The first and the last one are complete, the
//! others are patches.
//!
//! The data of a result has the member `form`, and either `projection` or `patch`.

use std::time::Duration;

use action_graph::project::{Projection, patch, project};
use action_graph::schedule::Why;
use agent_core::output::LineLimit;
use runner_kit::results;
use serde_json::json;
use tokio::time::Instant;

use crate::host::GraphAgentHost;
use crate::session::RunGraphs;

/// Result type of projections.
pub(crate) const PROJECTION: &str = "x.graph.projection";
/// Minimum interval between two patches of a graph: four per second.
const PAUSE: Duration = Duration::from_millis(250);

impl<H: GraphAgentHost> RunGraphs<H> {
    /// Sends the changes of every graph whose interval has passed.
    pub(crate) async fn show_due(&mut self) {
        let now = Instant::now();
        for position in 0..self.live_graphs.len() {
            let live = &self.live_graphs[position];
            let is_due = live.shown_at.is_none_or(|at| at + PAUSE <= now);
            if live.is_dirty && is_due {
                self.show(position, false).await;
            }
        }
    }

    /// Time of the next due patch; `None` without changes.
    pub(crate) fn next_show(&self) -> Option<Instant> {
        let dirty = self.live_graphs.iter().filter(|live| live.is_dirty);
        dirty.filter_map(|live| Some(live.shown_at? + PAUSE)).min()
    }

    /// Sends all changes, and the complete projection of each finished graph.
    pub(crate) async fn show_all(&mut self) {
        for position in 0..self.live_graphs.len() {
            let live = &mut self.live_graphs[position];
            let is_over = matches!(live.why, Some(Why::Finished | Why::Canceled));
            if live.is_dirty || is_over && !live.is_reported {
                live.is_reported = is_over;
                self.show(position, is_over).await;
            }
        }
    }

    async fn show(&mut self, position: usize, is_last: bool) {
        let line_limit = self.writer.line_limit();
        let live = &mut self.live_graphs[position];
        live.is_dirty = false;
        let now = fitting(project(&live.graph), line_limit);
        let before = live.shown.replace(now.clone());
        live.shown_at = Some(Instant::now());
        let data = match before {
            Some(before) if !is_last => match patch(&before, &now) {
                Some(patch) => json!({"form": "patch", "patch": patch}),
                None => return,
            },
            _ => json!({"form": "whole", "projection": now}),
        };
        let data = data.as_object().cloned().unwrap_or_default();
        self.writer.send(results::custom(PROJECTION, data)).await;
    }
}

/// Projection within one result line: too large ones lose descriptions and result summaries.
fn fitting(mut projection: Projection, line_limit: LineLimit) -> Projection {
    if line_limit.half().holds(&projection) {
        return projection;
    }
    for action in &mut projection.actions {
        action.description.clear();
        action.result_summary = None;
    }
    projection
}
