//! Opaque cursors: a position, bound to workspace, route and filters by an HMAC.

use std::sync::{PoisonError, RwLock};

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::authorization::FrozenConversation;
use protocol::id::WorkspaceId;

const VERSION: u8 = 1;
const TAG_BYTES: usize = 16;
const MAX_BYTES: usize = 1024;

/// The kind of list that a cursor walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CursorKind {
    History = 1,
    Runs = 2,
    Names = 3,
    Events = 4,
    Storage = 5,
    Health = 12,
    Conversations = 13,
}

/// A cursor that is tampered with or belongs to another list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidCursor;

/// Encodes and verifies cursors. All replicas share its keys; key rotation replaces them at run time.
pub struct Cursors(RwLock<CursorKeys>);

struct CursorKeys {
    signing: hmac::Key,
    others: Vec<hmac::Key>,
}

impl CursorKeys {
    fn open(secrets: &[Vec<u8>]) -> Option<Self> {
        let mut keys = secrets
            .iter()
            .map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret));
        Some(Self {
            signing: keys.next()?,
            others: keys.collect(),
        })
    }
}

impl Cursors {
    /// The first key signs, all keys verify. `None` if `secrets` is empty.
    pub fn new(secrets: &[Vec<u8>]) -> Option<Self> {
        CursorKeys::open(secrets).map(|keys| Self(RwLock::new(keys)))
    }

    /// Replaces all keys. `None` if `secrets` is empty; then the old keys stay.
    pub fn replace(&self, secrets: &[Vec<u8>]) -> Option<()> {
        // With an empty list, the old keys remain.
        let keys = CursorKeys::open(secrets)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Some(())
    }

    /// A cursor at `position`. `list` identifies workspace, route and filters.
    pub fn encode(&self, kind: CursorKind, list: &str, position: &[u8]) -> String {
        let mut bytes = vec![VERSION, kind as u8];
        bytes.extend_from_slice(position);
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let tag = tag(&keys.signing, kind, list, position);
        bytes.extend_from_slice(&tag.as_ref()[..TAG_BYTES]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Position of a cursor of the same list.
    pub fn decode(
        &self,
        kind: CursorKind,
        list: &str,
        cursor: &str,
    ) -> Result<Vec<u8>, InvalidCursor> {
        // Before decoding: clients may send any text.
        if cursor.len() > MAX_BYTES {
            return Err(InvalidCursor);
        }
        let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| InvalidCursor)?;
        let body = bytes
            .strip_prefix(&[VERSION, kind as u8])
            .ok_or(InvalidCursor)?;
        let (position, tag) = body.split_last_chunk::<TAG_BYTES>().ok_or(InvalidCursor)?;
        let is_signed_with = |key: &hmac::Key| {
            let expected = self::tag(key, kind, list, position);
            let expected = &expected.as_ref()[..TAG_BYTES];
            // In constant time: the duration must not reveal the expected tag.
            aws_lc_rs::constant_time::verify_slices_are_equal(expected, tag).is_ok()
        };
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let is_ours = is_signed_with(&keys.signing) || keys.others.iter().any(is_signed_with);
        is_ours.then(|| position.to_vec()).ok_or(InvalidCursor)
    }
}

fn tag(key: &hmac::Key, kind: CursorKind, list: &str, position: &[u8]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(key);
    context.update(&[VERSION, kind as u8]);
    // With its length: no byte can move between list and position under the same tag.
    context.update(&(list.len() as u64).to_be_bytes());
    context.update(list.as_bytes());
    context.update(position);
    context.sign()
}

fn history_list(workspace: &WorkspaceId, conversation: &FrozenConversation) -> String {
    let FrozenConversation {
        bot_id,
        conversation_id,
        thread_id,
    } = conversation;
    // JSON separates the parts unambiguously: ids may contain any character.
    serde_json::json!([
        "history",
        workspace.as_str(),
        bot_id,
        conversation_id,
        thread_id
    ])
    .to_string()
}

/// A cursor for a position in a conversation's transcript.
pub fn history_cursor(
    cursors: &Cursors,
    workspace: &WorkspaceId,
    conversation: &FrozenConversation,
    seq: i64,
) -> String {
    cursors.encode(
        CursorKind::History,
        &history_list(workspace, conversation),
        &seq.to_be_bytes(),
    )
}

/// Transcript position of a history cursor.
pub fn history_position(
    cursors: &Cursors,
    workspace: &WorkspaceId,
    conversation: &FrozenConversation,
    cursor: &str,
) -> Result<i64, InvalidCursor> {
    let list = history_list(workspace, conversation);
    let position = cursors.decode(CursorKind::History, &list, cursor)?;
    position
        .try_into()
        .map(i64::from_be_bytes)
        .map_err(|_| InvalidCursor)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secrets(keys: &[u8]) -> Vec<Vec<u8>> {
        keys.iter().map(|key| vec![*key; 32]).collect()
    }

    fn with_keys(keys: &[u8]) -> Cursors {
        Cursors::new(&secrets(keys)).unwrap()
    }

    #[test]
    fn cursors_verify_while_their_key_exists() {
        let cursors = with_keys(&[1]);
        let before = cursors.encode(CursorKind::Runs, "a", b"before");
        let open = |cursor: &str| cursors.decode(CursorKind::Runs, "a", cursor);
        // The new key verifies, but does not sign yet.
        cursors.replace(&secrets(&[1, 2])).unwrap();
        assert_eq!(cursors.encode(CursorKind::Runs, "a", b"before"), before);
        cursors.replace(&secrets(&[2, 1])).unwrap();
        let after = cursors.encode(CursorKind::Runs, "a", b"after");
        assert_eq!(open(&before).unwrap(), b"before");
        assert_eq!(open(&after).unwrap(), b"after");
        cursors.replace(&secrets(&[2])).unwrap();
        assert_eq!(open(&before), Err(InvalidCursor));
        assert!(cursors.replace(&[]).is_none());
        assert_eq!(open(&after).unwrap(), b"after");
    }

    #[test]
    fn rejects_tampered_cursors_and_other_lists() {
        let cursors = with_keys(&[7]);
        let cursor = cursors.encode(CursorKind::Runs, "a", b"position");
        assert_eq!(
            cursors.decode(CursorKind::Runs, "a", &cursor).unwrap(),
            b"position"
        );
        assert_eq!(
            cursors.decode(CursorKind::Runs, "b", &cursor),
            Err(InvalidCursor)
        );
        assert_eq!(
            cursors.decode(CursorKind::Names, "a", &cursor),
            Err(InvalidCursor)
        );
        assert_eq!(
            with_keys(&[8]).decode(CursorKind::Runs, "a", &cursor),
            Err(InvalidCursor)
        );
        let bytes = URL_SAFE_NO_PAD.decode(&cursor).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut tampered = bytes.clone();
            tampered[bit / 8] ^= 1 << (bit % 8);
            let tampered = URL_SAFE_NO_PAD.encode(tampered);
            assert_eq!(
                cursors.decode(CursorKind::Runs, "a", &tampered),
                Err(InvalidCursor),
                "bit {bit}"
            );
        }
        for garbage in ["", "x", "12", "=====", &"A".repeat(2000)] {
            assert_eq!(
                cursors.decode(CursorKind::Runs, "a", garbage),
                Err(InvalidCursor),
                "{garbage}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn accepts_only_encoded_cursors_of_the_same_list(
            list in ".{0,12}",
            position in prop::collection::vec(any::<u8>(), 0..40),
            text in "[A-Za-z0-9_=.+/ -]{0,60}",
            index in any::<prop::sample::Index>(),
            letter in prop::sample::select(&b"ABab01-_+/=. "[..]),
        ) {
            let cursors = with_keys(&[1, 2]);
            prop_assert_eq!(cursors.decode(CursorKind::Runs, &list, &text), Err(InvalidCursor));
            let made = cursors.encode(CursorKind::Runs, &list, &position);
            prop_assert_eq!(cursors.decode(CursorKind::Runs, &list, &made), Ok(position));
            let mut tampered = made.clone().into_bytes();
            *index.get_mut(&mut tampered) = letter;
            let tampered = String::from_utf8(tampered).unwrap();
            let opens = cursors.decode(CursorKind::Runs, &list, &tampered).is_ok();
            prop_assert_eq!(opens, tampered == made, "{}", tampered);
        }
    }
}
