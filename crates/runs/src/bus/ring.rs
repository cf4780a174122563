//! Notifications and their wire format, `SENDER NOTIFICATION NOTIFICATION…`. They carry ids only.

use std::collections::HashSet;

use protocol::id::RunId;
use tokio::sync::mpsc;
use uuid::Uuid;

/// Maximum number of notifications in one message. It stays below the 8,000 bytes that PostgreSQL carries.
const MOST_RINGS: usize = 200;
const MOST_BYTES: usize = 8_000;

/// A change of a run that other replicas may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ring {
    /// The run has new events or a new state.
    Advanced(RunId),
    /// Cancellation of the run was requested.
    Cancelled(RunId),
}

/// An event received from the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A notification, possibly forged: read the table and trust the table alone.
    Ring(Ring),
    /// Notifications may have been lost: poll everything.
    Missed,
}

impl Ring {
    fn write(self) -> String {
        match self {
            Self::Advanced(run) => format!("a{}", run.0.simple()),
            Self::Cancelled(run) => format!("c{}", run.0.simple()),
        }
    }

    fn read(text: &str) -> Option<Self> {
        let of = match text.get(..1)? {
            "a" => Self::Advanced,
            "c" => Self::Cancelled,
            _ => return None,
        };
        Uuid::parse_str(text.get(1..)?)
            .ok()
            .map(|run| of(RunId(run)))
    }
}

/// Id of the sending replica. It marks our own messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name(Uuid);

impl Name {
    pub(crate) fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Parses a peer's message. Empty for our own or malformed messages.
    pub(crate) fn read(self, notice: &str) -> impl Iterator<Item = Ring> {
        let (name, rings) = notice.split_once(' ').unwrap_or_default();
        let is_ours = Uuid::parse_str(name) == Ok(self.0);
        let is_sane = notice.len() < MOST_BYTES && !is_ours;
        let rings = if is_sane { rings } else { "" };
        rings.split(' ').take(MOST_RINGS).filter_map(Ring::read)
    }
}

/// A batch of notifications without duplicates.
pub(crate) struct Gathered(HashSet<Ring>);

impl Gathered {
    /// Batches `first` with everything that is queued.
    pub(crate) fn of(first: Ring, rings: &mut mpsc::Receiver<Ring>) -> Self {
        let mut gathered = HashSet::from([first]);
        while gathered.len() < MOST_RINGS
            && let Ok(next) = rings.try_recv()
        {
            gathered.insert(next);
        }
        Self(gathered)
    }

    /// Encodes the batch as a message of `me`.
    pub(crate) fn write(&self, me: Name) -> String {
        let mut notice = me.0.simple().to_string();
        for ring in &self.0 {
            notice.push(' ');
            notice.push_str(&ring.write());
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
    async fn a_notice_carries_each_ring_once_and_to_others_alone() {
        let (sender, mut rings) = mpsc::channel(64);
        for _ in 0..9 {
            sender.try_send(Ring::Advanced(run(1))).unwrap();
        }
        sender.try_send(Ring::Cancelled(run(1))).unwrap();
        let (me, other) = (Name::new(), Name::new());
        let first = rings.recv().await.unwrap();
        let notice = Gathered::of(first, &mut rings).write(me);
        assert_eq!(me.read(&notice).count(), 0);
        let heard: Vec<_> = other.read(&notice).collect();
        assert_eq!(heard.len(), 2);
        assert!(heard.contains(&Ring::Advanced(run(1))));
        assert!(heard.contains(&Ring::Cancelled(run(1))));
    }

    #[test]
    fn a_full_notice_fits_and_what_is_no_notice_is_not_heard() {
        let (sender, mut rings) = mpsc::channel(1000);
        for n in 1..1000 {
            sender.try_send(Ring::Advanced(run(u128::MAX - n))).unwrap();
        }
        let notice = Gathered::of(Ring::Advanced(run(0)), &mut rings).write(Name::new());
        assert!(notice.len() < MOST_BYTES, "{}", notice.len());
        assert_eq!(Name::new().read(&notice).count(), MOST_RINGS);
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
            assert_eq!(Name::new().read(&nonsense).count(), 0, "{nonsense}");
        }
    }
}
