//! How many bytes of request bodies are in memory at once: each is read whole and parsed.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use protocol::id::{ApiKeyId, RunId};

use crate::api::error::{ApiError, ApiResult};

/// Whose request it is, as far as its credential has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sender {
    Run(RunId),
    Key(ApiKeyId),
    /// All without a credential, together.
    Nobody,
}

/// What a room is for, and how it refuses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sign {
    /// Bodies up to here are not counted: connections bound them.
    pub(super) small: usize,
    /// The reason and the message for who has filled its own share.
    pub(super) own_full: (&'static str, &'static str),
    /// The same when all together have filled the room.
    pub(super) full: (&'static str, &'static str),
}

/// Bodies of requests, but for those to models.
const BODIES: Sign = Sign {
    small: 16 * 1024,
    own_full: (
        "body_bytes_of_sender",
        "other bodies under the same credential fill its share of the gateway's memory for them; wait for their \
         answers, or send less at once",
    ),
    full: (
        "body_bytes",
        "other bodies fill the gateway's memory for them; wait as long as `Retry-After` says, or send less at once",
    ),
};

/// A room of this process, with shares for those who are told apart by `K`. Each has half of it at most, or one of
/// the largest bodies, so that none keeps the others out.
pub(in crate::api) struct Room<K> {
    sign: Sign,
    share: usize,
    used: Arc<Mutex<Used<K>>>,
}

impl<K> Clone for Room<K> {
    fn clone(&self) -> Self {
        Self {
            sign: self.sign,
            share: self.share,
            used: Arc::clone(&self.used),
        }
    }
}

struct Used<K> {
    left: usize,
    by_owner: HashMap<K, usize>,
}

/// The room for bodies. An extension of every request.
pub(super) type BodyRoom = Room<Sender>;

/// A part of a room, given back on drop.
pub(in crate::api) struct Taken<K: Copy + Eq + Hash> {
    room: Room<K>,
    owner: K,
    bytes: usize,
}

/// A body, with the room that it takes.
pub(in crate::api) struct Held {
    pub(super) bytes: Bytes,
    pub(super) _room: Option<Taken<Sender>>,
}

impl Deref for Held {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

impl BodyRoom {
    /// Room for so many bytes of bodies, of which one may have `largest`.
    pub(super) fn for_bodies(bytes: usize, largest: usize) -> Self {
        Self::new(BODIES, bytes, largest)
    }
}

impl<K: Copy + Eq + Hash> Room<K> {
    /// Room for so many bytes. Each may have `largest`, however little room there is.
    pub(super) fn new(sign: Sign, bytes: usize, largest: usize) -> Self {
        let used = Used {
            left: bytes,
            by_owner: HashMap::new(),
        };
        Self {
            sign,
            share: largest.max(bytes / 2),
            used: Arc::new(Mutex::new(used)),
        }
    }

    /// Takes room for so many bytes, or refuses: nobody waits with a large body in hand.
    pub(in crate::api) fn take(&self, owner: K, bytes: usize) -> ApiResult<Taken<K>> {
        let mut taken = Taken {
            room: self.clone(),
            owner,
            bytes: 0,
        };
        taken.grow_to(bytes)?;
        Ok(taken)
    }

    fn used(&self) -> MutexGuard<'_, Used<K>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refusal((reason, message): (&str, &str)) -> ApiError {
    ApiError::rate_limited_by(reason, message.to_owned(), 1)
}

impl<K: Copy + Eq + Hash> Taken<K> {
    /// Has room for so many bytes, or refuses and keeps what it had. Small ones take none.
    pub(super) fn grow_to(&mut self, bytes: usize) -> ApiResult<()> {
        let more = bytes.saturating_sub(self.bytes);
        let sign = self.room.sign;
        if bytes <= sign.small || more == 0 {
            return Ok(());
        }
        let mut used = self.room.used();
        let own = used.by_owner.get(&self.owner).copied().unwrap_or(0);
        if own + more > self.room.share {
            return Err(refusal(sign.own_full));
        }
        if more > used.left {
            return Err(refusal(sign.full));
        }
        used.left -= more;
        used.by_owner.insert(self.owner, own + more);
        self.bytes += more;
        Ok(())
    }

    /// Gives back what is more than these bytes.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        if less == 0 {
            return;
        }
        self.bytes -= less;
        let mut used = self.room.used();
        used.left += less;
        let own = used.by_owner.get(&self.owner).copied().unwrap_or(0);
        match own.saturating_sub(less) {
            0 => used.by_owner.remove(&self.owner),
            rest => used.by_owner.insert(self.owner, rest),
        };
    }
}

impl<K: Copy + Eq + Hash> Drop for Taken<K> {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use uuid::Uuid;

    use super::*;

    const MIB: usize = 1024 * 1024;

    fn senders() -> [Sender; 2] {
        [1, 2].map(|number| Sender::Run(RunId(Uuid::from_u128(number))))
    }

    fn refused(room: &BodyRoom, sender: Sender, bytes: usize) -> Value {
        let (_, body) = room.take(sender, bytes).err().unwrap().into_parts();
        assert_eq!(body.code, "rate_limited");
        body.details["reason"].clone()
    }

    #[test]
    fn there_is_room_until_it_is_taken_and_again_when_it_is_given_back() {
        let room = BodyRoom::for_bodies(64 * MIB, 40 * MIB);
        let [one, other] = senders();
        let take = |sender, bytes| room.take(sender, bytes).ok();
        let mut large = [
            take(one, 20 * MIB),
            take(one, 20 * MIB),
            take(other, 20 * MIB),
        ]
        .map(Option::unwrap);
        assert_eq!(refused(&room, other, 20 * MIB), "body_bytes");
        assert!(take(other, 4 * MIB).is_some(), "what is left is given");
        assert!(take(one, BODIES.small).is_some());
        large[0].shrink(4 * MIB);
        let fourth = take(other, 20 * MIB);
        assert!(fourth.is_some(), "the first was smaller than it said");
        drop((large, fourth));
        let used = room.used();
        assert_eq!((used.left, used.by_owner.len()), (64 * MIB, 0));
    }

    #[test]
    fn nobody_has_more_than_their_share() {
        let room = BodyRoom::for_bodies(128 * MIB, MIB);
        let [one, other] = senders();
        let mut own = room.take(one, 60 * MIB).ok().unwrap();
        assert!(own.grow_to(64 * MIB).is_ok());
        assert!(own.grow_to(64 * MIB + 1).is_err());
        assert_eq!(refused(&room, one, MIB), "body_bytes_of_sender");
        assert!(room.take(other, 64 * MIB).is_ok());
        drop(own);
        assert!(room.take(one, MIB).is_ok());
        assert_eq!(room.used().left, 128 * MIB);
    }
}
