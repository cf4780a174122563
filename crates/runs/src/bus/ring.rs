//! Rings, and how they are written: `NAME RING RING…`, ids and nothing else.

use std::collections::HashSet;

use protocol::id::RunId;
use tokio::sync::mpsc;
use uuid::Uuid;

/// Rings of one notice: together they stay below the 8,000 bytes that PostgreSQL carries.
const MOST_RINGS: usize = 200;
const MOST_BYTES: usize = 8_000;

/// Something that other replicas may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ring {
    /// The run has more events, or has moved on.
    Advanced(RunId),
    /// Somebody asked the run to end.
    Cancelled(RunId),
}

/// What is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Whoever reaches the bus may have rung: look, and believe the table alone.
    Ring(Ring),
    /// Nothing was heard for a while: anything may have been rung.
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

/// Who rings: tells the own rings from those of others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name(Uuid);

impl Name {
    pub(crate) fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// The rings of somebody else's notice; none of what is no notice.
    pub(crate) fn read(self, notice: &str) -> impl Iterator<Item = Ring> {
        let (name, rings) = notice.split_once(' ').unwrap_or_default();
        let is_ours = Uuid::parse_str(name) == Ok(self.0);
        let is_sane = notice.len() < MOST_BYTES && !is_ours;
        let rings = if is_sane { rings } else { "" };
        rings.split(' ').take(MOST_RINGS).filter_map(Ring::read)
    }
}

/// Rings that go together, each once.
pub(crate) struct Gathered(HashSet<Ring>);

impl Gathered {
    /// `first` and what else waits.
    pub(crate) fn of(first: Ring, rings: &mut mpsc::Receiver<Ring>) -> Self {
        let mut gathered = HashSet::from([first]);
        while gathered.len() < MOST_RINGS
            && let Ok(next) = rings.try_recv()
        {
            gathered.insert(next);
        }
        Self(gathered)
    }

    /// As a notice of `me`.
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
