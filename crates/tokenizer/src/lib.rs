//! OpenAI's vocabularies. The binary has them compressed; the first count of a vocabulary unpacks it into a few
//! megabytes that all threads share.

mod merging;
mod pieces;
mod ranks;

use std::sync::LazyLock;

use merging::merged_len;
use pieces::Splitter;
use ranks::Ranks;

/// A tokenizer vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vocabulary {
    /// GPT-4o and later.
    O200k,
    /// GPT-4 and GPT-3.5.
    Cl100k,
}

/// Bytes of one piece that are merged together, which bounds the memory of a count. Longer pieces, words without any
/// space, may count a few tokens more than the provider does.
const MAX_PIECE: usize = 16 * 1024;

struct LoadedVocabulary {
    splitter: Splitter,
    ranks: Ranks,
}

static O200K: LazyLock<LoadedVocabulary> = LazyLock::new(|| LoadedVocabulary {
    splitter: Splitter::new(pieces::O200K),
    ranks: Ranks::unpack(include_bytes!(
        "../../../third-party/vocabularies/o200k_base.tiktoken.gz"
    )),
});
static CL100K: LazyLock<LoadedVocabulary> = LazyLock::new(|| LoadedVocabulary {
    splitter: Splitter::new(pieces::CL100K),
    ranks: Ranks::unpack(include_bytes!(
        "../../../third-party/vocabularies/cl100k_base.tiktoken.gz"
    )),
});

impl Vocabulary {
    /// Number of tokens of a text, in which special tokens are ordinary text.
    pub fn count(self, text: &str) -> usize {
        let encoding = match self {
            Self::O200k => &O200K,
            Self::Cl100k => &CL100K,
        };
        let pieces = encoding.splitter.pieces(text);
        pieces.map(|piece| encoding.count_piece(piece)).sum()
    }
}

impl LoadedVocabulary {
    fn count_piece(&self, piece: &str) -> usize {
        let bytes = piece.as_bytes();
        // Most pieces are one token, and the lookup is much cheaper than a merge.
        if self.ranks.get(bytes).is_some() {
            return 1;
        }
        // A cut may fall within a character, which is no problem: merging works on bytes.
        let parts = bytes.chunks(MAX_PIECE);
        parts.map(|part| merged_len(part, &self.ranks)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts with their counts by tiktoken; `tests/peer/count_texts.py` made them.
    const COUNTED: &str = include_str!("../../../tests/fixtures/token_counts.json");

    #[derive(serde::Deserialize)]
    struct CountedText {
        text: String,
        repeat: usize,
        o200k: usize,
        cl100k: usize,
    }

    #[test]
    fn counts_equal_the_reference_tokenizer() {
        let all: Vec<CountedText> = serde_json::from_str(COUNTED).unwrap();
        assert!(all.len() > 300);
        for counted in all {
            let text = counted.text.repeat(counted.repeat);
            let counts = [Vocabulary::O200k, Vocabulary::Cl100k].map(|of| of.count(&text));
            let CountedText { text, repeat, .. } = &counted;
            assert_eq!(
                counts,
                [counted.o200k, counted.cl100k],
                "{text:?} × {repeat}"
            );
        }
    }

    #[test]
    fn counts_endless_words_in_parts() {
        let word = "ab".repeat(3 * MAX_PIECE);
        let part = Vocabulary::O200k.count(&word[..MAX_PIECE]);
        assert_eq!(Vocabulary::O200k.count(&word), 6 * part);
    }
}
