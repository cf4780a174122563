//! Byte-pair merging of one piece in `O(n log n)`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ranks::Ranks;

/// A pair of neighbours that are one token together. The lowest rank is merged first, then the leftmost pair.
type Pair = Reverse<(u32, usize, usize)>;

/// The parts of a piece as a linked list. A part is known by the offset of its first byte.
struct PieceParts<'a> {
    piece: &'a [u8],
    ranks: &'a Ranks,
    /// End of the part that starts here, which is the start of the next one; 0 once it is merged into another part.
    ends: Vec<usize>,
    /// Start of the part before.
    before: Vec<usize>,
    queue: BinaryHeap<Pair>,
}

/// Number of tokens of a piece, from parts of one byte: every byte is a token.
pub(super) fn merged_len(piece: &[u8], ranks: &Ranks) -> usize {
    let mut parts = PieceParts {
        piece,
        ranks,
        ends: (1..=piece.len()).collect(),
        before: (0..piece.len())
            .map(|start| start.saturating_sub(1))
            .collect(),
        queue: BinaryHeap::with_capacity(piece.len()),
    };
    // All pairs of single bytes; merges then add the pairs that they create.
    for start in 0..piece.len() {
        parts.push_pair(start);
    }
    let mut len = piece.len();
    while let Some(Reverse((_, start, end))) = parts.queue.pop() {
        // The queue cannot remove a pair when one of its parts changes, so outdated pairs are skipped here.
        if parts.is_pair(start, end) {
            parts.merge(start, end);
            len -= 1;
        }
    }
    len
}

impl PieceParts<'_> {
    /// Queues the part that starts here and the next one, if together they are a token.
    fn push_pair(&mut self, start: usize) {
        let Some(&end) = self.ends.get(self.ends[start]) else {
            return;
        };
        if let Some(rank) = self.ranks.get(&self.piece[start..end]) {
            self.queue.push(Reverse((rank, start, end)));
        }
    }

    /// A queued pair is out of date once one of its parts was merged with another one.
    fn is_pair(&self, start: usize, end: usize) -> bool {
        let middle = self.ends[start];
        middle != 0 && middle != end && self.ends.get(middle) == Some(&end)
    }

    fn merge(&mut self, start: usize, end: usize) {
        let middle = self.ends[start];
        self.ends[middle] = 0;
        self.ends[start] = end;
        if let Some(before) = self.before.get_mut(end) {
            *before = start;
        }
        // The merged part has new neighbours on both sides.
        self.push_pair(start);
        if start > 0 {
            self.push_pair(self.before[start]);
        }
    }
}
