//! Turns of earlier runs, for the transcript of later ones.

use action_graph::graph::Millis;
use action_graph::transcript::TranscriptTurn;
use serde::{Deserialize, Serialize};

/// The key of the turns.
pub(super) const KEY: &str = "apd.turns";
/// Bytes of all turns.
const BYTES: usize = 60 << 10;
/// Bytes of the turns of one run.
const OF_RUN: usize = 24 << 10;
/// Characters of a long text in a run whose turns are too many.
const SHORT: usize = 400;

/// The turns of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Digest {
    /// The run.
    pub run: String,
    /// The event that began it.
    pub event: String,
    /// When it ended.
    pub at: Millis,
    /// Its turns.
    pub turns: Vec<TranscriptTurn>,
}

/// The turns of the last runs, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct DigestRing {
    pub(super) digests: Vec<Digest>,
}

impl DigestRing {
    /// Adds the turns of a run instead of those that it added before; false when they stand there.
    pub(super) fn add(&mut self, digest: &Digest) -> bool {
        let digest = shortened(digest.clone());
        if self.digests.last() == Some(&digest) {
            return false;
        }
        self.digests.retain(|one| one.run != digest.run);
        self.digests.push(digest);
        while bytes(&self.digests) > BYTES && self.digests.len() > 1 {
            self.digests.remove(0);
        }
        true
    }
}

fn bytes(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |bytes| bytes.len())
}

/// Shortens long texts, then drops the oldest turns, until the turns of a run keep their bound.
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
            turn.is_exact = false;
            for call in &mut turn.calls {
                cut(&mut call.text, SHORT);
                cut(&mut call.arguments, SHORT);
            }
        }
    }
}

/// Keeps the beginning of a text and says that more was there.
fn cut(text: &mut String, most: usize) {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
        text.push_str(" […]");
    }
}
