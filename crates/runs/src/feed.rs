//! The feed of a workspace: ids of changed runs and questions, for clients that show lists.
//!
//! Changes of this process are noted after their commit, changes of other replicas arrive as notifications. Both are
//! hints: the feed looks each run up, and a viewer reads the lists again after a `reset`.

mod changes;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use domain::api_key::AgentReach;
use futures_util::Stream;
use protocol::feed::{FeedEvent, FeedEventType};
use protocol::id::WorkspaceId;
use store::{RunOwner, StoreError};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::deps::RunDeps;
use crate::notifier::Notifier;
use telemetry::metrics::OpenStream;

pub(crate) use changes::{Change, ChangeSet};

/// Queued events of a viewer. Full: later events are dropped, and the viewer gets a `reset` after the queue.
const QUEUE: usize = 256;
/// Pause between two rounds. Repeated changes of a run within it are one event.
const ROUND: Duration = Duration::from_millis(100);
/// Pause after a failed look-up.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// Interval of a `reset` for all viewers, which repairs the loss of notifications.
const RESET_INTERVAL: Duration = Duration::from_secs(30);

/// Viewers of this process, and the changes that they have not received.
#[derive(Default)]
pub(crate) struct FeedHub {
    changes: ChangeSet,
    viewers: Mutex<HashMap<WorkspaceId, Vec<Arc<Viewer>>>>,
    /// Number of viewers. Without any, changes are not noted.
    count: AtomicUsize,
}

/// The writing side of one viewer.
struct Viewer {
    reach: AgentReach,
    queue: mpsc::Sender<FeedEvent>,
    /// Events were dropped.
    is_lagging: AtomicBool,
    /// Notified when `is_lagging` is set.
    lag_noted: Notify,
}

impl Viewer {
    fn send(&self, event: FeedEvent) {
        // Nothing is queued after a loss, so that the `reset` comes after all older events.
        if !self.is_lagging.load(Ordering::Acquire) && self.queue.try_send(event).is_err() {
            self.is_lagging.store(true, Ordering::Release);
            // The reader may have emptied the queue meanwhile.
            self.lag_noted.notify_one();
        }
    }
}

impl FeedHub {
    /// Notes a committed change. Never waits.
    pub(crate) fn note(&self, change: Change) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.changes.add(change);
        }
    }

    /// Notes that changes were lost.
    pub(crate) fn note_loss(&self) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.changes.lose();
        }
    }

    // The map is consistent after any panic.
    fn viewers(&self) -> MutexGuard<'_, HashMap<WorkspaceId, Vec<Arc<Viewer>>>> {
        self.viewers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, workspace: &WorkspaceId, viewer: Arc<Viewer>) {
        let mut viewers = self.viewers();
        viewers.entry(workspace.clone()).or_default().push(viewer);
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    fn remove(&self, workspace: &WorkspaceId, viewer: &Arc<Viewer>) {
        let mut viewers = self.viewers();
        if let Some(own) = viewers.get_mut(workspace) {
            own.retain(|other| !Arc::ptr_eq(other, viewer));
            if own.is_empty() {
                viewers.remove(workspace);
            }
        }
        self.count.fetch_sub(1, Ordering::AcqRel);
    }

    fn publish(&self, change: Change, owner: &RunOwner) {
        let event = FeedEvent {
            kind: match change {
                Change::Run(_) => FeedEventType::Run,
                Change::Interaction(_) => FeedEventType::Interaction,
                Change::Action(_) => FeedEventType::Action,
            },
            run_id: Some(change.run()),
            agent_id: Some(owner.agent_id),
        };
        for viewer in self.viewers().get(&owner.workspace).into_iter().flatten() {
            if viewer.reach.reaches(owner.agent_id) {
                viewer.send(event);
            }
        }
    }

    fn reset_all(&self) {
        for viewer in self.viewers().values().flatten() {
            viewer.send(RESET);
        }
    }
}

const RESET: FeedEvent = FeedEvent {
    kind: FeedEventType::Reset,
    run_id: None,
    agent_id: None,
};

/// The feed of this process.
pub struct Feed {
    pub(super) deps: Arc<RunDeps>,
}

impl Feed {
    /// Publishes changes to viewers until the process stops.
    pub async fn keep_publishing(&self) {
        tokio::select! {
            () = self.deps.lifecycle.closing.cancelled() => {}
            () = self.publish() => {}
        }
    }

    async fn publish(&self) {
        let hub = &self.deps.notifier.feed;
        let mut is_failing = false;
        let mut next_reset = Instant::now() + RESET_INTERVAL;
        loop {
            tokio::select! {
                () = hub.changes.noted() => {}
                () = tokio::time::sleep_until(next_reset) => hub.changes.lose(),
            }
            tokio::time::sleep(ROUND).await;
            let Some(changes) = hub.changes.take() else {
                next_reset = Instant::now() + RESET_INTERVAL;
                hub.reset_all();
                continue;
            };
            match self.publish_round(&changes).await {
                Ok(()) => is_failing = false,
                Err(error) => {
                    // Logged once per outage.
                    if !std::mem::replace(&mut is_failing, true) {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(
                            error,
                            "the feed cannot look up changed runs; its viewers read their lists again"
                        );
                    }
                    tokio::time::sleep(AFTER_ERROR).await;
                    hub.changes.lose();
                }
            }
        }
    }

    async fn publish_round(&self, changes: &[Change]) -> Result<(), StoreError> {
        let runs = changes.iter().map(|change| change.run()).collect();
        let owners = self.deps.store.runs().find_owners(runs).await?;
        for change in changes {
            // A forged notification may name no run.
            if let Some(owner) = owners.get(&change.run()) {
                self.deps.notifier.feed.publish(*change, owner);
            }
        }
        Ok(())
    }

    /// Frames of the changes from now on, beginning with a `reset`. `reach`: the agents that the viewer may see. The
    /// stream ends when the process stops.
    pub fn watch(
        &self,
        workspace: &WorkspaceId,
        reach: AgentReach,
        heartbeat: Duration,
    ) -> impl Stream<Item = Result<Bytes, StoreError>> + Send + use<> {
        let stopping = self.deps.lifecycle.stopping.clone();
        let watcher = FeedWatcher::new(&self.deps.notifier, stopping, workspace, reach, heartbeat);
        futures_util::stream::unfold(watcher, |mut watcher| async move {
            let frame = watcher.next().await?;
            Some((Ok(frame), watcher))
        })
    }
}

/// The reading side of one viewer.
struct FeedWatcher {
    notifier: Arc<Notifier>,
    workspace: WorkspaceId,
    viewer: Arc<Viewer>,
    events: mpsc::Receiver<FeedEvent>,
    heartbeat: Duration,
    /// Cancelled when the process stops.
    stopping: CancellationToken,
    is_over: bool,
    _open: OpenStream,
}

impl FeedWatcher {
    /// Registers a viewer, which begins with a `reset`.
    fn new(
        notifier: &Arc<Notifier>,
        stopping: CancellationToken,
        workspace: &WorkspaceId,
        reach: AgentReach,
        heartbeat: Duration,
    ) -> Self {
        let (queue, events) = mpsc::channel(QUEUE);
        let viewer = Arc::new(Viewer {
            reach,
            queue,
            is_lagging: AtomicBool::new(true),
            lag_noted: Notify::new(),
        });
        notifier.feed.add(workspace, Arc::clone(&viewer));
        Self {
            notifier: Arc::clone(notifier),
            workspace: workspace.clone(),
            viewer,
            events,
            heartbeat,
            stopping,
            is_over: false,
            _open: OpenStream::enter(),
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        loop {
            // Cleared before the queue is emptied: an event between the two is covered by this `reset`.
            if self.viewer.is_lagging.swap(false, Ordering::AcqRel) {
                while self.events.try_recv().is_ok() {}
                return Some(frame(RESET));
            }
            return tokio::select! {
                event = self.events.recv() => event.map(frame),
                () = self.viewer.lag_noted.notified() => continue,
                () = tokio::time::sleep(self.heartbeat) => Some(Bytes::from_static(b": \n\n")),
                () = self.stopping.cancelled() => {
                    self.is_over = true;
                    Some(Bytes::from_static(b"retry: 1000\nevent: gateway.draining\n\n"))
                }
            };
        }
    }
}

impl Drop for FeedWatcher {
    fn drop(&mut self) {
        self.notifier.feed.remove(&self.workspace, &self.viewer);
    }
}

fn frame(event: FeedEvent) -> Bytes {
    let data = serde_json::to_string(&event).expect("ids serialise to JSON");
    Bytes::from(format!("event: {}\ndata: {data}\n\n", event.kind.as_str()))
}

#[cfg(test)]
mod tests {
    use protocol::id::{AgentId, RunId};
    use uuid::Uuid;

    use super::*;

    fn watcher(notifier: &Arc<Notifier>) -> FeedWatcher {
        let workspace = WorkspaceId("w".to_owned());
        let (reach, heartbeat) = (AgentReach::All, Duration::from_secs(1));
        FeedWatcher::new(
            notifier,
            CancellationToken::new(),
            &workspace,
            reach,
            heartbeat,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn slow_viewer_gets_one_reset() {
        let notifier = Arc::new(Notifier::default());
        let mut slow = watcher(&notifier);
        let reset = frame(RESET);
        assert_eq!(slow.next().await, Some(reset.clone()), "at the begin");
        let owner = RunOwner {
            workspace: slow.workspace.clone(),
            agent_id: AgentId(Uuid::nil()),
        };
        let change = |n| Change::Run(RunId(Uuid::from_u128(n)));
        for n in 0..3 * QUEUE as u128 {
            notifier.feed.publish(change(n), &owner);
        }
        assert_eq!(slow.next().await, Some(reset), "for all lost events");
        notifier.feed.publish(change(7), &owner);
        let next = slow.next().await.unwrap();
        assert!(next.starts_with(b"event: run\n"), "{next:?}");
        // Idle from here on.
        assert_eq!(slow.next().await.unwrap(), ": \n\n");
    }

    #[test]
    fn hub_forgets_viewers_and_notes_nothing_without_them() {
        let notifier = Arc::new(Notifier::default());
        let change = Change::Run(RunId(Uuid::nil()));
        notifier.feed.note(change);
        assert_eq!(notifier.feed.changes.take(), Some(Vec::new()));
        let one = watcher(&notifier);
        notifier.feed.note(change);
        assert_eq!(notifier.feed.changes.take(), Some(vec![change]));
        drop(one);
        notifier.feed.note(change);
        assert_eq!(notifier.feed.changes.take(), Some(Vec::new()));
        assert!(notifier.feed.viewers().is_empty());
    }
}
