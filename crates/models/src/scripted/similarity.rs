//! Text similarity by words, for embedding and rerank by scripted models. Vectors are deterministic.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

const DIMENSIONS: usize = 128;

/// Words in lower case; single characters for scripts without spaces.
pub(super) fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|sign: char| !sign.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .flat_map(|word| {
            // Code points from 0x2E80 are East Asian scripts.
            let has_spaces = word.chars().all(|sign| (sign as u32) < 0x2E80);
            let parts: Vec<String> = if has_spaces {
                vec![word.to_lowercase()]
            } else {
                word.chars().map(String::from).collect()
            };
            parts
        })
}

/// A vector of length 1; the first axis for a text without words.
pub(super) fn vector(text: &str) -> Vec<f32> {
    let mut vector = vec![0.0_f32; DIMENSIONS];
    for word in words(text) {
        let mut hasher = DefaultHasher::new();
        word.hash(&mut hasher);
        let hash = usize::try_from(hasher.finish() % DIMENSIONS as u64).unwrap_or(0);
        vector[hash] += 1.0;
    }
    let length = vector.iter().map(|part| part * part).sum::<f32>().sqrt();
    // A zero vector has no direction, and stores reject it.
    if length == 0.0 {
        vector[0] = 1.0;
    } else {
        for part in &mut vector {
            *part /= length;
        }
    }
    vector
}

/// Cosine similarity: 1 for equal words, 0 for none in common.
pub(super) fn of(one: &str, other: &str) -> f64 {
    let pairs = vector(one).into_iter().zip(vector(other));
    pairs.map(|(a, b)| f64::from(a) * f64::from(b)).sum()
}
