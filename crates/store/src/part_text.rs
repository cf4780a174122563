//! Texts without their shared parts.
//!
//! A stored text replaces a part by its hash between two marks. The mark is a control character, which JSON text
//! cannot contain. Texts without marks are complete.

use std::sync::Arc;

use memchr::memmem::Finder;
use secrets::digest::sha256_hex;

/// Encloses the hash of a part.
pub(crate) const MARK: char = '\u{1}';
/// Minimum size of a part. A mark takes 66 bytes.
const MIN_PART_BYTES: usize = 192;
/// Minimum size of a part that is deleted with the contexts that use it. Each use has a row of about 200 bytes.
pub(crate) const MIN_DELETED_BYTES: usize = 512;

/// Candidate parts in the stored texts of a run. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SharedParts(Arc<[Arc<SharedPart>]>);

/// A part of texts.
#[derive(Debug)]
pub(crate) struct SharedPart {
    pub(crate) sha256: String,
    pub(crate) text: String,
    /// Search for the text, prepared once for all runs of an agent.
    finder: Finder<'static>,
}

/// A text with its parts replaced by marks.
#[derive(Clone, Debug)]
pub struct StoredText {
    pub(crate) text: String,
    pub(crate) named: Vec<Arc<SharedPart>>,
}

impl StoredText {
    /// Concatenates texts.
    pub fn joined(pieces: [&Self; 3]) -> Self {
        let texts = pieces.map(|piece| piece.text.as_str());
        let named = pieces.into_iter().flat_map(|piece| &piece.named);
        Self {
            text: texts.concat(),
            named: named.cloned().collect(),
        }
    }
}

impl Default for SharedParts {
    fn default() -> Self {
        Self(Arc::new([]))
    }
}

impl SharedParts {
    /// Keeps the texts of at least 192 bytes.
    pub fn of(texts: impl IntoIterator<Item = String>) -> Self {
        let worth = texts
            .into_iter()
            .filter(|text| text.len() >= MIN_PART_BYTES);
        let mut parts: Vec<_> = worth
            .map(|text| {
                let sha256 = sha256_hex(text.as_bytes());
                let finder = Finder::new(&text).into_owned();
                Arc::new(SharedPart {
                    sha256,
                    text,
                    finder,
                })
            })
            .collect();
        // Longest first, because a part may contain another.
        parts.sort_by_key(|part| std::cmp::Reverse(part.text.len()));
        Self(parts.into())
    }

    /// Hashes of the parts.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|part| part.sha256.as_str())
    }

    /// Replaces the first occurrence of each part by a mark.
    pub fn apart(&self, full_text: &str) -> StoredText {
        let mut apart = StoredText {
            text: full_text.to_owned(),
            named: Vec::new(),
        };
        for part in self.0.iter() {
            if let Some(at) = part.finder.find(apart.text.as_bytes()) {
                let mark = format!("{MARK}{}{MARK}", part.sha256);
                apart.text.replace_range(at..at + part.text.len(), &mark);
                apart.named.push(Arc::clone(part));
            }
        }
        apart
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extracts_each_long_part_once() {
        let long = "a".repeat(MIN_PART_BYTES);
        let longer = format!("{long}b");
        let parts = SharedParts::of([long.clone(), longer.clone(), "short".to_owned()]);
        assert_eq!(parts.0.len(), 2);
        let apart = parts.apart(&format!("[\"{longer}\",\"short\"]"));
        let hash = sha256_hex(longer.as_bytes());
        assert_eq!(apart.text, format!("[\"\u{1}{hash}\u{1}\",\"short\"]"));
        assert_eq!(apart.named.len(), 1);
        assert_eq!(SharedParts::default().apart(&long).text, long);
    }
}
