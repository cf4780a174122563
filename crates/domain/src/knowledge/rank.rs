//! Ranks passages by words (BM25), by vectors (cosine), or by both.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::text_index::RankedQuery;

/// BM25 parameters: saturation of the term frequency, and length normalization.
const K1: f64 = 1.2;
const B: f64 = 0.75;
/// Constant of reciprocal rank fusion; lower values favour the first ranks.
const RANK_CONSTANT: f64 = 60.0;

/// Size of the searched collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Corpus {
    pub passages: u64,
    /// Words and signs of all passages.
    pub units: u64,
}

/// Inverse document frequency weights of the terms of a query.
#[derive(Clone, Debug)]
pub struct TermWeights(Vec<f64>);

impl TermWeights {
    /// `frequencies`: number of passages with each term of the query.
    pub fn new(query: &RankedQuery, frequencies: &[u64], corpus: Corpus) -> Self {
        let total = number(corpus.passages);
        let weight = |(share, frequency): (f64, &u64)| {
            // The counts come from separate queries, so a concurrent import may make them disagree.
            let frequency = number(*frequency).min(total);
            share * (1.0 + (total - frequency + 0.5) / (frequency + 0.5)).ln()
        };
        Self(query.shares().zip(frequencies).map(weight).collect())
    }

    /// Narrows a long query to its most significant terms. Terms without passages are removed.
    pub fn narrow(query: RankedQuery, frequencies: &[u64], corpus: Corpus) -> RankedQuery {
        let Self(mut weights) = Self::new(&query, frequencies, corpus);
        for (weight, frequency) in weights.iter_mut().zip(frequencies) {
            // An absent term has the highest weight, but selects nothing.
            if *frequency == 0 {
                *weight = 0.0;
            }
        }
        query.narrowed(&weights)
    }

    /// Returns the weight of the terms that a passage contains, without their counts. Selects the candidates for
    /// scoring.
    pub fn presence_score(&self, terms: impl IntoIterator<Item = usize>) -> f64 {
        terms.into_iter().filter_map(|term| self.0.get(term)).sum()
    }

    /// Returns the relevance of a passage from 0 to 1: its BM25 score divided by the maximum score.
    pub fn score(&self, query: &RankedQuery, passage: &str, corpus: Corpus) -> f64 {
        let found = query.count_in(passage);
        // An empty corpus would divide by zero.
        let mean = number(corpus.units) / number(corpus.passages.max(1));
        let length = 1.0 - B + B * number(found.units) / mean.max(1.0);
        let worth = |(weight, count): (&f64, &u64)| {
            let count = number(*count);
            weight * count * (K1 + 1.0) / (count + K1 * length)
        };
        let reached: f64 = self.0.iter().zip(&found.counts).map(worth).sum();
        // The limit of BM25 for endless repetitions of every term.
        let max_score: f64 = self.0.iter().sum::<f64>() * (K1 + 1.0);
        if max_score > 0.0 {
            (reached / max_score).min(1.0)
        } else {
            0.0
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn number(count: u64) -> f64 {
    count as f64
}

/// Returns the vector scaled to length one. `None`: its length is zero or not finite.
pub fn normalized(vector: &[f32]) -> Option<Vec<f32>> {
    // A vector without a finite length has no direction: the division would give NaN.
    let length = dot(vector, vector).sqrt();
    if !length.is_finite() || length <= 0.0 {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is at most 1")]
    let scaled = |value: &f32| (f64::from(*value) / length) as f32;
    Some(vector.iter().map(scaled).collect())
}

/// Returns the cosine similarity of two vectors of length one: 1 for equal, -1 for opposite vectors.
pub fn dot(one: &[f32], other: &[f32]) -> f64 {
    // f64: a sum of thousands of f32 products loses the order of near matches.
    let products = one
        .iter()
        .zip(other)
        .map(|(a, b)| f64::from(*a) * f64::from(*b));
    products.sum()
}

/// Serializes a vector: little-endian, four bytes for each number.
pub fn vector_bytes(vector: &[f32]) -> Vec<u8> {
    vector
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Returns the similarity of a vector and a serialized vector. `None`: their lengths differ.
pub fn dot_bytes(vector: &[f32], bytes: &[u8]) -> Option<f64> {
    if bytes.len() != vector.len() * 4 {
        return None;
    }
    let (other, _) = bytes.as_chunks::<4>();
    let other = other.iter().map(|bytes| f32::from_le_bytes(*bytes));
    Some(
        vector
            .iter()
            .zip(other)
            .map(|(a, b)| f64::from(*a) * f64::from(b))
            .sum(),
    )
}

/// Bounded collection of the best entries. Of entries with equal score, the lower id wins.
#[derive(Clone, Debug)]
pub struct TopK {
    capacity: usize,
    entries: Vec<(f64, i64)>,
}

impl TopK {
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            entries: Vec::with_capacity(capacity + 1),
        }
    }

    pub fn offer(&mut self, score: f64, id: i64) {
        let new = (score, id);
        // The buffer stays sorted: a worse entry is rejected without a search.
        if self.entries.len() == self.capacity
            && self
                .entries
                .last()
                .is_none_or(|last| order(last, &new).is_lt())
        {
            return;
        }
        let index = self.entries.partition_point(|one| order(one, &new).is_lt());
        self.entries.insert(index, new);
        self.entries.truncate(self.capacity);
    }

    /// Returns the entries, best first.
    pub fn into_sorted(self) -> Vec<(f64, i64)> {
        self.entries
    }
}

fn order(one: &(f64, i64), other: &(f64, i64)) -> Ordering {
    // `total_cmp` also orders NaN, so that it cannot break the sorted buffer. Ids make the order stable.
    other.0.total_cmp(&one.0).then(one.1.cmp(&other.1))
}

/// Merges ranked lists by reciprocal rank fusion. An entry that leads all lists scores 1.
pub fn fuse(lists: &[Vec<i64>]) -> HashMap<i64, f64> {
    let mut scores = HashMap::new();
    for list in lists {
        for (rank, id) in (1..).zip(list) {
            // Ranks fuse, not scores: BM25 and cosine have different scales.
            let share = (RANK_CONSTANT + 1.0) / (RANK_CONSTANT + number(rank));
            *scores.entry(*id).or_insert(0.0) += share / number(lists.len() as u64);
        }
    }
    scores
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranked<'a>(query: &str, passages: &[&'a str]) -> Vec<(&'a str, f64)> {
        let query = RankedQuery::parse(query);
        let corpus = Corpus {
            passages: passages.len() as u64,
            units: passages.iter().map(|text| query.count_in(text).units).sum(),
        };
        let counts: Vec<_> = passages
            .iter()
            .map(|text| query.count_in(text).counts)
            .collect();
        let frequencies: Vec<u64> = (0..query.shares().count())
            .map(|term| counts.iter().filter(|counts| counts[term] > 0).count() as u64)
            .collect();
        let weights = TermWeights::new(&query, &frequencies, corpus);
        let mut ranked: Vec<_> = passages
            .iter()
            .map(|text| (*text, weights.score(&query, text, corpus)))
            .filter(|(_, score)| *score > 0.0)
            .collect();
        ranked.sort_by(|one, other| other.1.total_cmp(&one.1));
        ranked
    }

    #[test]
    fn ranks_answering_passage_first_in_any_script() {
        let passages = [
            "Employees have 30 days of vacation a year.",
            "The office is open from nine to five, also in the year 2026.",
            "员工每年有三十天的年假。",
            "办公室的开放时间是九点到五点。",
            "今天的天气很好，气温也不高。",
            "従業員は年に三十日の有給休暇を取得できます。",
            "東京の天気は晴れです。",
        ];
        for (query, first) in [
            ("How many vacation days does an employee have?", passages[0]),
            ("office opening times", passages[1]),
            ("年假有多少天", passages[2]),
            ("办公室什么时候开放", passages[3]),
            ("天气怎么样", passages[4]),
            ("有給休暇は何日ですか", passages[5]),
            ("東京の天気", passages[6]),
        ] {
            let found = ranked(query, &passages);
            assert_eq!(found[0].0, first, "{query}: {found:?}");
            assert!(found[0].1 <= 1.0);
        }
        assert!(ranked("submarine", &passages).is_empty());
    }

    #[test]
    fn keeps_best_in_order_with_ties_by_id() {
        let mut best = TopK::new(3);
        for (score, id) in [
            (0.1, 1),
            (0.9, 5),
            (0.5, 4),
            (0.9, 2),
            (0.5, 3),
            (f64::MIN, 9),
        ] {
            best.offer(score, id);
        }
        assert_eq!(best.into_sorted(), [(0.9, 2), (0.9, 5), (0.5, 3)]);
    }

    #[test]
    fn compares_vectors_by_direction_only() {
        let unit = normalized(&[3.0, 4.0]).unwrap();
        assert!((dot(&unit, &unit) - 1.0).abs() < 1e-6);
        let longer = normalized(&[30.0, 40.0]).unwrap();
        assert!((dot_bytes(&unit, &vector_bytes(&longer)).unwrap() - 1.0).abs() < 1e-6);
        assert_eq!(dot_bytes(&unit, &vector_bytes(&[1.0])), None);
        for nothing in [vec![], vec![0.0, 0.0], vec![f32::NAN], vec![f32::INFINITY]] {
            assert_eq!(normalized(&nothing), None);
        }
    }

    #[test]
    fn fusion_favours_entries_in_several_lists() {
        let fused = fuse(&[vec![1, 2, 3], vec![1, 3, 4]]);
        assert!((fused[&1] - 1.0).abs() < 1e-9);
        assert!(fused[&3] > fused[&2] && fused[&2] > fused[&4]);
        assert!((fuse(&[vec![7]])[&7] - 1.0).abs() < 1e-9);
    }
}
