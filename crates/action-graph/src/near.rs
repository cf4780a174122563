//! Names that a writer probably meant.

use crate::result::tokens::head_bytes;

/// Fields, and the names that other formats have for them, without case and separators.
const FIELDS: [(&str, &str); 21] = [
    ("equals", "op operator eq value test"),
    ("in", "oneof"),
    ("less", "lt lte lessthan below"),
    ("more", "gt gte greaterthan above"),
    ("negate", "not"),
    ("is", "status state"),
    ("when", "if condition"),
    ("for_each", "foreach map"),
    ("repeat", "loop"),
    ("items", "list over"),
    ("max", "limit maxitems"),
    ("failure_policy", "retry onfailure onerror"),
    ("max_attempts", "retries attempts maxretries"),
    ("backoff_ms", "backoff"),
    ("mode", "policy"),
    ("result_policy", "result"),
    ("depends_on", "needs after requires"),
    ("input", "args arguments parameters"),
    ("executor", "tool"),
    ("timeout_ms", "timeout"),
    ("delay_ms", "delay"),
];

/// The field among `known` that has the meaning or nearly the spelling of `name`.
pub(crate) fn field<'a>(name: &str, candidates: &'a [String]) -> Option<&'a str> {
    let squeezed = squeeze(name);
    let is_other = |others: &str| others.split(' ').any(|one| one == squeezed);
    let meant = FIELDS.iter().find(|(_, others)| is_other(others));
    let exact = candidates
        .iter()
        .find(|field| meant.is_some_and(|(ours, _)| ours == field) || squeeze(field) == squeezed);
    // Meaning before spelling: `if` means `when`, although `id` is nearer.
    match exact {
        Some(field) => Some(field),
        None => nearest(name, candidates.iter().map(String::as_str)),
    }
}

fn squeeze(name: &str) -> String {
    let letters = name.chars().filter(|letter| letter.is_alphanumeric());
    letters.flat_map(char::to_lowercase).collect()
}

/// The nearest name within one edit, and one more for each four bytes.
pub(crate) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A shorter name allows fewer edits: otherwise every short name would be near.
    let near = names.min_by_key(|one| distance(one, name))?;
    (distance(near, name) <= 1 + name.len() / 4).then_some(near)
}

/// Edit distance of the first 64 bytes: its cost is the product of both lengths.
fn distance(left: &str, right: &str) -> usize {
    strsim::levenshtein(head_bytes(left, 64), head_bytes(right, 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fields_by_meaning_and_spelling() {
        let candidates = ["ref", "equals", "less", "depends_on", "max_attempts"].map(str::to_owned);
        for (name, expected) in [
            ("op", Some("equals")),
            ("dependsOn", Some("depends_on")),
            ("lessThan", Some("less")),
            ("max_atempts", Some("max_attempts")),
            ("retries", Some("max_attempts")),
            ("if", None),
            ("colour", None),
        ] {
            assert_eq!(field(name, &candidates), expected, "{name}");
        }
    }
}
