//! Turns of earlier runs, for the transcript of later ones.

use action_graph::graph::Millis;
use action_graph::transcript::TranscriptTurn;
use serde::{Deserialize, Serialize};

/// State key of the turns.
pub(super) const KEY: &str = "apd.turns";
/// Maximum bytes of all turns.
const BYTES: usize = 60 << 10;
/// Maximum bytes of the turns of one run.
const OF_RUN: usize = 24 << 10;
/// Maximum characters of a text after shortening.
const SHORT: usize = 400;

/// Turns of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Digest {
    /// Id of the run in the gateway.
    pub run: String,
    /// Id of the event that started the run.
    pub event: String,
    /// End of the run, in milliseconds since the epoch.
    pub at: Millis,
    /// Turns of the run, oldest first.
    pub turns: Vec<TranscriptTurn>,
}

/// Turns of the last runs, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct DigestList {
    pub(super) digests: Vec<Digest>,
}

impl DigestList {
    /// Adds or replaces the turns of a run; false if nothing changes.
    pub(super) fn add(&mut self, digest: &Digest) -> bool {
        let digest = shortened(digest.clone());
        if self.digests.last() == Some(&digest) {
            return false;
        }
        self.digests.retain(|one| one.run != digest.run);
        self.digests.push(digest);
        // The last digest always stays: its own bound is lower than that of all.
        while bytes(&self.digests) > BYTES && self.digests.len() > 1 {
            self.digests.remove(0);
        }
        true
    }
}

fn bytes(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |bytes| bytes.len())
}

/// Shortens long texts, then drops the oldest turns, until the digest fits its bound.
fn shortened(mut digest: Digest) -> Digest {
    if bytes(&digest.turns) > OF_RUN {
        digest.turns.iter_mut().for_each(shorten);
    }
    while bytes(&digest.turns) > OF_RUN && !digest.turns.is_empty() {
        digest.turns.remove(0);
    }
    digest
}

fn shorten(turn: &mut TranscriptTurn) {
    match turn {
        TranscriptTurn::User { text, .. } | TranscriptTurn::Answer { text } => cut(text, SHORT * 5),
        TranscriptTurn::Notice(notice) => notice.lines.clear(),
        TranscriptTurn::Protocol(turn) => {
            // The replay must not present shortened texts as exact.
            turn.is_exact = false;
            for call in &mut turn.calls {
                cut(&mut call.text, SHORT);
                cut(&mut call.arguments, SHORT);
            }
        }
    }
}

/// Cuts a text and marks the omission.
fn cut(text: &mut String, max_chars: usize) {
    if let Some((end, _)) = text.char_indices().nth(max_chars) {
        text.truncate(end);
        text.push_str(" […]");
    }
}
