//! Notifications and their wire format, `SENDER NOTIFICATION NOTIFICATION…`. They carry ids only.

use std::collections::HashSet;

use protocol::id::RunId;
use tokio::sync::mpsc;
use uuid::Uuid;

/// Maximum number of notifications in one message. It stays below the 8,000 bytes that PostgreSQL carries.
const MAX_NOTIFICATIONS: usize = 200;
const MAX_BYTES: usize = 8_000;

/// A change of a run that other replicas may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notification {
    /// The run has new events or a new state.
    Advanced(RunId),
    /// Cancellation of the run was requested.
    Cancelled(RunId),
    /// The run was created or has another status.
    Changed(RunId),
    /// A question of the run was opened or answered.
    QuestionChanged(RunId),
    /// A platform action of the run was opened or changed.
    ActionChanged(RunId),
}

/// An event received from the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inbound {
    /// A notification, possibly forged: trust only the table.
    Notification(Notification),
    /// Notifications may have been lost: poll everything.
    Missed,
}

impl Notification {
    fn write(self) -> String {
        match self {
            Self::Advanced(run) => format!("a{}", run.0.simple()),
            Self::Cancelled(run) => format!("c{}", run.0.simple()),
            Self::Changed(run) => format!("s{}", run.0.simple()),
            Self::QuestionChanged(run) => format!("q{}", run.0.simple()),
            Self::ActionChanged(run) => format!("p{}", run.0.simple()),
        }
    }

    fn read(text: &str) -> Option<Self> {
        let of = match text.get(..1)? {
            "a" => Self::Advanced,
            "c" => Self::Cancelled,
            "s" => Self::Changed,
            "q" => Self::QuestionChanged,
            "p" => Self::ActionChanged,
            _ => return None,
        };
        Uuid::parse_str(text.get(1..)?)
            .ok()
            .map(|run| of(RunId(run)))
    }
}

/// Id of the sending replica. It marks our own messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplicaId(Uuid);

impl ReplicaId {
    pub(crate) fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Parses a peer's message. Empty for our own or malformed messages.
    pub(crate) fn read(self, notice: &str) -> impl Iterator<Item = Notification> {
        let (name, list) = notice.split_once(' ').unwrap_or_default();
        let is_ours = Uuid::parse_str(name) == Ok(self.0);
        // A peer may be an attacker on the bus, so the work is bounded.
        let is_readable = notice.len() < MAX_BYTES && !is_ours;
        let list = if is_readable { list } else { "" };
        list.split(' ')
            .take(MAX_NOTIFICATIONS)
            .filter_map(Notification::read)
    }
}

/// A batch of notifications without duplicates.
pub(crate) struct NotificationBatch(HashSet<Notification>);

impl NotificationBatch {
    /// Batches `first` with everything that is queued.
    pub(crate) fn of(first: Notification, list: &mut mpsc::Receiver<Notification>) -> Self {
        let mut gathered = HashSet::from([first]);
        // Batching adapts to the load: one message takes what has queued during the last send.
        while gathered.len() < MAX_NOTIFICATIONS
            && let Ok(next) = list.try_recv()
        {
            gathered.insert(next);
        }
        Self(gathered)
    }

    /// Encodes the batch as a message of `me`.
    pub(crate) fn write(&self, me: ReplicaId) -> String {
        let mut notice = me.0.simple().to_string();
        for notification in &self.0 {
            notice.push(' ');
            notice.push_str(&notification.write());
        }
        notice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: u128) -> RunId {
        RunId(Uuid::from_u128(n))
    }

    #[tokio::test]
    async fn messages_deduplicate_and_skip_their_sender() {
        let (sender, mut list) = mpsc::channel(64);
        for _ in 0..9 {
            sender.try_send(Notification::Advanced(run(1))).unwrap();
        }
        sender.try_send(Notification::Cancelled(run(1))).unwrap();
        let (me, other) = (ReplicaId::new(), ReplicaId::new());
        let first = list.recv().await.unwrap();
        let notice = NotificationBatch::of(first, &mut list).write(me);
        assert_eq!(me.read(&notice).count(), 0);
        let received: Vec<_> = other.read(&notice).collect();
        assert_eq!(received.len(), 2);
        assert!(received.contains(&Notification::Advanced(run(1))));
        assert!(received.contains(&Notification::Cancelled(run(1))));
    }

    #[test]
    fn full_messages_fit_and_malformed_ones_are_empty() {
        let (sender, mut list) = mpsc::channel(1000);
        for n in 1..1000 {
            sender
                .try_send(Notification::Advanced(run(u128::MAX - n)))
                .unwrap();
        }
        let notice = NotificationBatch::of(Notification::Advanced(run(0)), &mut list)
            .write(ReplicaId::new());
        assert!(notice.len() < MAX_BYTES, "{}", notice.len());
        assert_eq!(ReplicaId::new().read(&notice).count(), MAX_NOTIFICATIONS);
        let name = Uuid::nil().simple();
        for nonsense in [
            String::new(),
            " ".to_owned(),
            "x".to_owned(),
            format!("{name} a"),
            format!("{name} a1"),
            format!("{name} aé{name} é"),
            format!("{name} z{name}"),
            format!("{name} a{name}:57"),
            format!("{name} {}", format!("a{name} ").repeat(1000)),
        ] {
            assert_eq!(ReplicaId::new().read(&nonsense).count(), 0, "{nonsense}");
        }
    }
}
