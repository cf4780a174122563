//! The doorbell between replicas on one `PostgreSQL`: rings, never data (runs §2).
//!
//! A ring says that something is in the tables now. It is sent after the commit, in a transaction
//! of its own, and may be lost: whoever waits also looks by itself from time to time.

use std::collections::HashMap;
use std::time::Duration;

use protocol::id::RunId;
use sqlx::PgPool;
use sqlx::postgres::PgListener;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::connect::{Backend, Store};

const CHANNEL: &str = "runnel";
/// Rings of one notification: together they stay below the 8,000 bytes that it can carry.
const RINGS: usize = 100;
/// Before the connection is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// Something that other replicas may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// The run has events up to this sequence, or has moved on.
    Advanced { run: RunId, to: u64 },
    /// Somebody asked the run to end, at this time in epoch milliseconds.
    Cancelled { run: RunId, at: i64 },
}

/// What is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Ring(Ring),
    /// The connection was away: anything may have been missed.
    Missed,
}

impl Ring {
    fn run(self) -> RunId {
        match self {
            Self::Advanced { run, .. } | Self::Cancelled { run, .. } => run,
        }
    }

    fn write(self) -> String {
        match self {
            Self::Advanced { run, to } => format!("a{}:{to}", run.0.simple()),
            Self::Cancelled { run, at } => format!("c{}:{at}", run.0.simple()),
        }
    }

    fn read(text: &str) -> Option<Self> {
        let (name, number) = text.get(1..)?.split_once(':')?;
        let run = RunId(Uuid::parse_str(name).ok()?);
        match text.get(..1)? {
            "a" => Some(Self::Advanced {
                run,
                to: number.parse().ok()?,
            }),
            "c" => Some(Self::Cancelled {
                run,
                at: number.parse().ok()?,
            }),
            _ => None,
        }
    }
}

/// Rings that wait to be sent: of each run the newest of either kind.
#[derive(Default)]
struct Outgoing {
    rings: HashMap<(RunId, bool), Ring>,
}

impl Outgoing {
    fn add(&mut self, ring: Ring) {
        let is_cancel = matches!(ring, Ring::Cancelled { .. });
        self.rings.insert((ring.run(), is_cancel), ring);
    }

    fn is_full(&self) -> bool {
        self.rings.len() >= RINGS
    }

    /// The payload of a notification: who rings, and what.
    fn take(&mut self, me: Uuid) -> String {
        let mut payload = me.simple().to_string();
        for (_, ring) in self.rings.drain() {
            payload.push(' ');
            payload.push_str(&ring.write());
        }
        payload
    }
}

/// The rings of somebody else's notification.
fn heard(payload: &str, me: Uuid) -> impl Iterator<Item = Ring> {
    let mut parts = payload.split(' ');
    let is_own = parts.next() == Some(me.simple().to_string().as_str());
    let rings = if is_own { "" } else { payload };
    rings.split(' ').skip(1).filter_map(Ring::read)
}

impl Store {
    /// Sends what comes out of `rings` and calls `hear` for what other replicas send, until
    /// dropped. `me` tells the own rings from theirs. Without other replicas it does nothing.
    pub async fn attend_doorbell(
        &self,
        me: Uuid,
        mut rings: mpsc::Receiver<Ring>,
        hear: impl Fn(Heard),
    ) {
        if self.backend() == Backend::Sqlite {
            // Nobody listens: take them out, so that nobody waits for room.
            while rings.recv().await.is_some() {}
            return;
        }
        let pool = self.readers.postgres_pool();
        tokio::join!(send(pool, me, rings), listen(pool, me, hear));
    }
}

async fn send(pool: &PgPool, me: Uuid, mut rings: mpsc::Receiver<Ring>) {
    let mut outgoing = Outgoing::default();
    while let Some(first) = rings.recv().await {
        outgoing.add(first);
        while !outgoing.is_full() {
            let Ok(next) = rings.try_recv() else { break };
            outgoing.add(next);
        }
        let sent = sqlx::query("SELECT pg_notify($1, $2)")
            .bind(CHANNEL)
            .bind(outgoing.take(me))
            .execute(pool)
            .await;
        if let Err(error) = sent {
            tracing::warn!(%error, "the doorbell could not be rung; others will look by themselves");
        }
    }
}

async fn listen(pool: &PgPool, me: Uuid, hear: impl Fn(Heard)) {
    loop {
        let error = match follow(pool, me, &hear).await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        tracing::warn!(%error, "the doorbell cannot be heard, trying again");
        hear(Heard::Missed);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn follow(
    pool: &PgPool,
    me: Uuid,
    hear: &impl Fn(Heard),
) -> Result<std::convert::Infallible, sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(CHANNEL).await?;
    // What was rung before this moment was not heard.
    hear(Heard::Missed);
    loop {
        match listener.try_recv().await? {
            Some(notification) => {
                for ring in heard(notification.payload(), me) {
                    hear(Heard::Ring(ring));
                }
            }
            None => hear(Heard::Missed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_carries_the_newest_ring_of_each_run_to_others() {
        let run = |n: u128| RunId(Uuid::from_u128(n));
        let mut outgoing = Outgoing::default();
        for to in 1..=9 {
            outgoing.add(Ring::Advanced { run: run(1), to });
        }
        outgoing.add(Ring::Cancelled { run: run(1), at: 5 });
        let (me, other) = (Uuid::from_u128(7), Uuid::from_u128(8));
        let payload = outgoing.take(me);
        assert_eq!(heard(&payload, me).count(), 0);
        let rings: Vec<_> = heard(&payload, other).collect();
        assert_eq!(rings.len(), 2);
        assert!(rings.contains(&Ring::Advanced { run: run(1), to: 9 }));
        assert!(rings.contains(&Ring::Cancelled { run: run(1), at: 5 }));
    }

    #[test]
    fn a_full_notification_fits_and_nonsense_is_not_heard() {
        let mut outgoing = Outgoing::default();
        while !outgoing.is_full() {
            let run = RunId(Uuid::from_u128(u128::MAX - outgoing.rings.len() as u128));
            outgoing.add(Ring::Advanced { run, to: u64::MAX });
        }
        assert!(outgoing.take(Uuid::nil()).len() < 8000);
        for nonsense in [
            "",
            " ",
            "x",
            "someone a:1",
            "someone aé:1 é",
            "someone z0:1",
        ] {
            assert_eq!(heard(nonsense, Uuid::nil()).count(), 0, "{nonsense}");
        }
    }
}
