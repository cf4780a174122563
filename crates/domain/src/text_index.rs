//! Full-text search: index terms of texts, and matching of queries.
//!
//! Both databases use this tokenizer. They store opaque terms and find the texts of a scope that contain all
//! terms of a query. [`TextQuery::matches`] then verifies each text, so a search has the same result on every
//! database.
//!
//! Terms are stored. A change of the algorithm requires a rebuild of all terms.

mod ranked;
mod units;

use std::collections::BTreeSet;

pub use ranked::{RankedQuery, TermCounts, passage_terms};
use units::{Unit, units};

/// Maximum characters of a query.
pub const MAX_CHARACTERS: usize = 1000;
/// Maximum words of a query. Each character of a script without spaces is one word.
pub const MAX_WORDS: usize = 64;

/// A query: phrases that must all occur.
///
/// White space separates words. Words in `"quotes"` must be adjacent and in order, and so must the parts of one
/// word: `well-known`, `天气`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextQuery {
    phrases: Vec<Vec<Unit>>,
}

/// Reason to reject a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryFault {
    #[error("must not be empty; page the history to read all of it")]
    Empty,
    #[error("must have at most {MAX_CHARACTERS} characters")]
    TooLong,
    #[error("must have at most {MAX_WORDS} words; each Chinese or Japanese character is one")]
    TooManyWords,
}

impl TextQuery {
    /// Parses any text of a bounded size. A query without letters, digits and signs finds nothing.
    pub fn parse(text: &str) -> Result<Self, QueryFault> {
        if text.trim().is_empty() {
            return Err(QueryFault::Empty);
        }
        if text.chars().count() > MAX_CHARACTERS {
            return Err(QueryFault::TooLong);
        }
        let parts: Vec<&str> = text.split(is_quote).collect();
        let mut phrases = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            // An odd part is inside of quotes, except after an unclosed quote.
            if index % 2 == 1 && index + 1 < parts.len() {
                phrases.push(units(part));
            } else {
                phrases.extend(part.split_whitespace().flat_map(words));
            }
        }
        // Parts of punctuation only have no units.
        phrases.retain(|phrase| !phrase.is_empty());
        // The bound counts units, because each costs a term in the database query.
        if phrases.iter().map(Vec::len).sum::<usize>() > MAX_WORDS {
            return Err(QueryFault::TooManyWords);
        }
        Ok(Self { phrases })
    }

    /// Returns the terms that every matching text contains, sorted. Empty: the query finds nothing.
    pub fn terms(&self, scope: &str) -> Vec<String> {
        let scope = TermScope::new(scope);
        let mut terms = BTreeSet::new();
        for phrase in &self.phrases {
            match phrase.as_slice() {
                // One unit has no pair, so its own term selects the candidates.
                [alone] => {
                    terms.insert(scope.term(&[&alone.text]));
                }
                // Pairs select fewer candidates than single units, and every pair contains both units.
                several => terms.extend(scope.pairs(several)),
            }
        }
        terms.into_iter().collect()
    }

    /// Returns true if the query matches this text.
    pub fn matches(&self, text: &str) -> bool {
        // The terms are hashes of pairs: a candidate may have them in another order.
        let units = units(text);
        let occurs = |phrase: &Vec<Unit>| {
            units
                .windows(phrase.len())
                .any(|window| is_phrase(phrase, window))
        };
        // `all` of no phrases would match every text.
        !self.phrases.is_empty() && self.phrases.iter().all(occurs)
    }
}

/// Returns the terms of a text, sorted: each unit, and each pair of adjacent units. `scope`: owner of the text;
/// equal words of two scopes are different terms.
pub fn index_terms(scope: &str, text: &str) -> Vec<String> {
    let scope = TermScope::new(scope);
    let units = units(text);
    let alone = units.iter().map(|unit| scope.term(&[&unit.text]));
    let mut terms: Vec<_> = scope.pairs(&units).chain(alone).collect();
    terms.sort_unstable();
    // The index has each term of a text once.
    terms.dedup();
    terms
}

fn is_quote(letter: char) -> bool {
    matches!(letter, '"' | '“' | '”' | '„' | '＂')
}

/// Returns the phrases of one unquoted word: `你好，世界` has two.
fn words(word: &str) -> Vec<Vec<Unit>> {
    let mut phrases: Vec<Vec<Unit>> = Vec::new();
    for unit in units(word) {
        match phrases.last_mut() {
            Some(phrase) if !unit.follows_gap => phrase.push(unit),
            _ => phrases.push(vec![Unit {
                // The gap is in the query, not in the phrase: its first unit has none before it.
                follows_gap: false,
                ..unit
            }]),
        }
    }
    phrases
}

/// Signs adjacent in the phrase must be adjacent in the text: `今天，气温` does not match `天气`.
fn is_phrase(phrase: &[Unit], text: &[Unit]) -> bool {
    phrase
        .iter()
        .zip(text)
        .enumerate()
        .all(|(at, (one, unit))| {
            // Words follow a gap in any case; only signs without spaces need the check.
            one.text == unit.text && (at == 0 || one.follows_gap || !unit.follows_gap)
        })
}

/// A term has twelve letters: four for its scope, so that terms of one scope are adjacent in an index, and eight
/// for its words. A collision costs one additional comparison.
struct TermScope(u64);

impl TermScope {
    fn new(scope: &str) -> Self {
        Self(fingerprint(&[scope]) >> 44)
    }

    fn term(&self, parts: &[&str]) -> String {
        const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        // 20 bits of the scope and 40 of the parts: twelve letters of 5 bits.
        let number = self.0 << 40 | fingerprint(parts) >> 24;
        let digits = (0..12).rev().map(|position| number >> (position * 5) & 31);
        digits
            .filter_map(|digit| LETTERS.get(usize::try_from(digit).ok()?))
            .map(|&letter| char::from(letter))
            .collect()
    }

    fn pairs<'a>(&'a self, units: &'a [Unit]) -> impl Iterator<Item = String> + 'a {
        let pair = |pair: &[Unit]| match pair {
            [first, second] => self.term(&[&first.text, &second.text]),
            _ => self.term(&[]),
        };
        units.windows(2).map(pair)
    }
}

/// FNV-1a over the terminated parts, with a final mix that distributes the bits evenly.
fn fingerprint(parts: &[&str]) -> u64 {
    const END: u8 = 0xff;
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        // The terminator distinguishes `ab`, `c` from `a`, `bc`. 0xff never occurs in UTF-8.
        for byte in part.bytes().chain([END]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    // FNV leaves the high bits uneven for short texts, and the term takes the high bits.
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

#[cfg(test)]
mod tests;
