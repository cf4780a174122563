//! Ranked search: passages that contain some words of a query.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::TermScope;
use super::units::{Unit, is_sign, units};

/// Maximum terms of a search. A longer query is narrowed to its most significant terms.
const MAX_TERMS: usize = 96;
/// Maximum terms considered for the narrowing.
const MAX_CANDIDATES: usize = 2048;
/// Relative weights of terms. A single sign has little meaning and two signs form a word. Two adjacent words mean more
/// than both words in different parts of a text.
const WORD: f64 = 1.0;
const WORDS: f64 = 0.5;
const SIGN: f64 = 0.25;
const SIGNS: f64 = 1.0;

/// A query in natural language, of which any term may occur.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedQuery {
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq)]
struct Term {
    first: String,
    second: Option<String>,
    share: f64,
}

/// Counts of the terms of a query in a passage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermCounts {
    pub counts: Vec<u64>,
    /// Words and signs of the passage.
    pub units: u64,
}

impl RankedQuery {
    /// Parses any text. A query without letters, digits and signs finds nothing.
    pub fn parse(text: &str) -> Self {
        let units = stemmed(text);
        let (mut terms, mut seen) = (Vec::new(), HashSet::new());
        let mut add = |first: &Unit, second: Option<&Unit>, share: f64| {
            let (first, second) = (first.text.clone(), second.map(|unit| unit.text.clone()));
            if seen.insert((first.clone(), second.clone())) {
                terms.push(Term {
                    first,
                    second,
                    share,
                });
            }
        };
        for unit in &units {
            add(unit, None, if is_sign(unit) { SIGN } else { WORD });
        }
        for pair in units.windows(2) {
            if let [first, second] = pair {
                let signs = is_sign(first) && is_sign(second) && !second.follows_gap;
                add(first, Some(second), if signs { SIGNS } else { WORDS });
            }
        }
        // Single signs have the least meaning, so they are removed first.
        if terms.len() > MAX_CANDIDATES {
            terms.retain(|term| term.second.is_some() || term.share > SIGN);
        }
        let all = terms.len();
        if all > MAX_CANDIDATES {
            // Samples evenly over the text: its end may matter as much as its start.
            let mut index = 0;
            terms.retain(|_| {
                index += 1;
                index * MAX_CANDIDATES / all > (index - 1) * MAX_CANDIDATES / all
            });
        }
        Self { terms }
    }

    /// Returns true if it has more terms than a search uses.
    pub fn is_long(&self) -> bool {
        self.terms.len() > MAX_TERMS
    }

    /// Returns the query with the [`MAX_TERMS`] terms of highest weight, in order. Terms without weight are
    /// removed.
    #[must_use]
    pub fn narrowed(self, worth: &[f64]) -> Self {
        // A weight of 0 marks a term that no passage contains.
        let mut candidates: Vec<(usize, f64)> = worth
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, worth)| *worth > 0.0)
            .collect();
        candidates.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        candidates.truncate(MAX_TERMS);
        // Filtered by a set instead of collected by weight: the order of the terms must not change.
        let selected: HashSet<usize> = candidates.into_iter().map(|(index, _)| index).collect();
        let terms = self.terms.into_iter().enumerate();
        let terms = terms.filter(|(index, _)| selected.contains(index));
        Self {
            terms: terms.map(|(_, term)| term).collect(),
        }
    }

    /// Returns the relative weight of each term.
    pub fn shares(&self) -> impl Iterator<Item = f64> {
        self.terms.iter().map(|term| term.share)
    }

    /// Returns the index terms, in the order of [`RankedQuery::shares`].
    pub fn terms(&self, scope: &str) -> Vec<String> {
        let scope = TermScope::new(scope);
        let term = |term: &Term| match &term.second {
            None => scope.term(&[&term.first]),
            Some(second) => scope.term(&[&term.first, second]),
        };
        self.terms.iter().map(term).collect()
    }

    /// Counts each term in a text.
    pub fn count_in(&self, text: &str) -> TermCounts {
        let indexes: HashMap<(&str, Option<&str>), usize> = (0..)
            .zip(&self.terms)
            .map(|(index, term)| ((term.first.as_str(), term.second.as_deref()), index))
            .collect();
        // Same stemming as in the index; otherwise counts would miss plurals.
        let units = stemmed(text);
        let mut counts = vec![0; self.terms.len()];
        let mut count = |first: &Unit, second: Option<&Unit>| {
            let second = second.map(|unit| unit.text.as_str());
            if let Some(index) = indexes.get(&(first.text.as_str(), second))
                && let Some(count) = counts.get_mut(*index)
            {
                *count += 1;
            }
        };
        for (index, unit) in units.iter().enumerate() {
            count(unit, None);
            if let Some(next) = units.get(index + 1) {
                count(unit, Some(next));
            }
        }
        TermCounts {
            counts,
            units: units.len() as u64,
        }
    }
}

/// Returns the index terms of a passage, sorted, and its number of words and signs.
pub fn passage_terms(scope: &str, text: &str) -> (Vec<String>, u64) {
    let scope = TermScope::new(scope);
    let units = stemmed(text);
    // A set: the database has each term of a passage once.
    let mut terms: BTreeSet<String> = scope.pairs(&units).collect();
    terms.extend(units.iter().map(|unit| scope.term(&[&unit.text])));
    (terms.into_iter().collect(), units.len() as u64)
}

fn stemmed(text: &str) -> Vec<Unit> {
    let mut units = units(text);
    for unit in &mut units {
        stem(&mut unit.text);
    }
    units
}

/// Harman's stemmer: reduces an English plural to its singular. Errors are consistent across all texts.
fn stem(word: &mut String) {
    // The rules are for English: other scripts and short words stay.
    if word.len() < 4 || !word.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return;
    }
    let ends = |ending: &str| word.ends_with(ending);
    // `ies` first, since it also ends with `s`.
    if ends("ies") && !ends("eies") && !ends("aies") {
        word.truncate(word.len() - 3);
        word.push('y');
    } else if ends("s") && !ends("us") && !ends("ss") && !ends("aes") && !ends("ees") {
        word.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn singular_and_plural_match_each_other() {
        for (one, other) in [
            ("vacation", "Vacations"),
            ("policy", "policies"),
            ("Café", "cafes"),
            ("天气", "天气"),
        ] {
            let query = RankedQuery::parse(one);
            assert!(query.count_in(other).counts[0] > 0, "{one} {other}");
            let query = RankedQuery::parse(other);
            assert!(query.count_in(one).counts[0] > 0, "{other} {one}");
        }
        let query = RankedQuery::parse("glass status");
        assert_eq!(query.count_in("glas statu").counts[0], 0);
    }

    #[test]
    fn counted_terms_are_indexed() {
        let text = "The offices open at nine. 今天天气很好。";
        let query = RankedQuery::parse("office opens 天气 nothing");
        let (terms, length) = passage_terms("base", text);
        let counted = query.count_in(text);
        assert_eq!(counted.units, length);
        for (term, count) in query.terms("base").iter().zip(&counted.counts) {
            assert_eq!(terms.contains(term), *count > 0, "{term}");
        }
        let (others, _) = passage_terms("other", text);
        assert!(others.iter().all(|term| !terms.contains(term)));
    }

    #[test]
    fn limits_number_of_query_terms() {
        let words: Vec<_> = (0..3000).map(|n| format!("w{n}")).collect();
        let query = RankedQuery::parse(&words.join(" "));
        assert_eq!(query.shares().count(), MAX_CANDIDATES);
        assert!(query.is_long());
        let worth: Vec<f64> = (0..MAX_CANDIDATES)
            .map(|n| f64::from(u32::try_from(n).unwrap()))
            .collect();
        let last = query.terms("s").pop();
        let query = query.narrowed(&worth);
        assert_eq!(query.shares().count(), MAX_TERMS);
        assert_eq!(query.terms("s").pop(), last);
        assert!(!query.is_long());
        assert_eq!(RankedQuery::parse(" ?! ").shares().count(), 0);
    }
}
