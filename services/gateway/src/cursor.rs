//! Opaque cursors: a position, bound to workspace, route and filters by an HMAC (contracts §7).

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::authorization::FrozenConversation;
use protocol::id::WorkspaceId;

const VERSION: u8 = 1;
const TAG_BYTES: usize = 16;
const MOST_BYTES: usize = 1024;

/// What a cursor walks through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    History = 1,
    Runs = 2,
    Names = 3,
    Events = 4,
    Storage = 5,
    Health = 12,
}

/// A cursor that is bent, or was made for another list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidCursor;

/// Makes and opens cursors. Its key is shared by all replicas.
pub struct Cursors(hmac::Key);

impl Cursors {
    pub fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// A cursor at `position`. `list`: workspace, route and filters.
    pub fn encode(&self, kind: Kind, list: &str, position: &[u8]) -> String {
        let mut bytes = vec![VERSION, kind as u8];
        bytes.extend_from_slice(position);
        let tag = self.tag(kind, list, position);
        bytes.extend_from_slice(&tag.as_ref()[..TAG_BYTES]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The position of a cursor of the same list.
    pub fn decode(&self, kind: Kind, list: &str, cursor: &str) -> Result<Vec<u8>, InvalidCursor> {
        if cursor.len() > MOST_BYTES {
            return Err(InvalidCursor);
        }
        let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| InvalidCursor)?;
        let body = bytes
            .strip_prefix(&[VERSION, kind as u8])
            .ok_or(InvalidCursor)?;
        let (position, tag) = body.split_last_chunk::<TAG_BYTES>().ok_or(InvalidCursor)?;
        let expected = self.tag(kind, list, position);
        aws_lc_rs::constant_time::verify_slices_are_equal(&expected.as_ref()[..TAG_BYTES], tag)
            .map_err(|_| InvalidCursor)?;
        Ok(position.to_vec())
    }

    fn tag(&self, kind: Kind, list: &str, position: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&[VERSION, kind as u8]);
        context.update(&(list.len() as u64).to_be_bytes());
        context.update(list.as_bytes());
        context.update(position);
        context.sign()
    }
}

fn history_list(workspace: &WorkspaceId, conversation: &FrozenConversation) -> String {
    let FrozenConversation {
        bot_id,
        conversation_id,
        thread_id,
    } = conversation;
    serde_json::json!([
        "history",
        workspace.as_str(),
        bot_id,
        conversation_id,
        thread_id
    ])
    .to_string()
}

/// The cursor of a place in a conversation's transcript.
pub fn history_cursor(
    cursors: &Cursors,
    workspace: &WorkspaceId,
    conversation: &FrozenConversation,
    seq: i64,
) -> String {
    cursors.encode(
        Kind::History,
        &history_list(workspace, conversation),
        &seq.to_be_bytes(),
    )
}

/// The place that a history cursor names.
pub fn history_place(
    cursors: &Cursors,
    workspace: &WorkspaceId,
    conversation: &FrozenConversation,
    cursor: &str,
) -> Result<i64, InvalidCursor> {
    let list = history_list(workspace, conversation);
    let position = cursors.decode(Kind::History, &list, cursor)?;
    position
        .try_into()
        .map(i64::from_be_bytes)
        .map_err(|_| InvalidCursor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_opens_only_its_own_list_and_only_unbent() {
        let cursors = Cursors::new(&[7; 32]);
        let cursor = cursors.encode(Kind::Runs, "a", b"position");
        assert_eq!(
            cursors.decode(Kind::Runs, "a", &cursor).unwrap(),
            b"position"
        );
        assert_eq!(cursors.decode(Kind::Runs, "b", &cursor), Err(InvalidCursor));
        assert_eq!(
            cursors.decode(Kind::Names, "a", &cursor),
            Err(InvalidCursor)
        );
        assert_eq!(
            Cursors::new(&[8; 32]).decode(Kind::Runs, "a", &cursor),
            Err(InvalidCursor)
        );
        let bytes = URL_SAFE_NO_PAD.decode(&cursor).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut bent = bytes.clone();
            bent[bit / 8] ^= 1 << (bit % 8);
            let bent = URL_SAFE_NO_PAD.encode(bent);
            assert_eq!(
                cursors.decode(Kind::Runs, "a", &bent),
                Err(InvalidCursor),
                "bit {bit}"
            );
        }
        for garbage in ["", "x", "12", "=====", &"A".repeat(2000)] {
            assert_eq!(
                cursors.decode(Kind::Runs, "a", garbage),
                Err(InvalidCursor),
                "{garbage}"
            );
        }
    }
}
