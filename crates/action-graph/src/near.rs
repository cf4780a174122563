//! Names that a writer probably meant.

/// Names of other formats, without case and separators, and the fields that have their meaning here.
const FIELDS: [(&str, &str); 44] = [
    ("op", "equals"),
    ("operator", "equals"),
    ("eq", "equals"),
    ("value", "equals"),
    ("test", "equals"),
    ("oneof", "in"),
    ("lt", "less"),
    ("lte", "less"),
    ("lessthan", "less"),
    ("below", "less"),
    ("gt", "more"),
    ("gte", "more"),
    ("greaterthan", "more"),
    ("above", "more"),
    ("not", "negate"),
    ("status", "is"),
    ("state", "is"),
    ("if", "when"),
    ("condition", "when"),
    ("foreach", "for_each"),
    ("map", "for_each"),
    ("loop", "repeat"),
    ("list", "items"),
    ("over", "items"),
    ("limit", "max"),
    ("maxitems", "max"),
    ("retry", "failure_policy"),
    ("retries", "max_attempts"),
    ("attempts", "max_attempts"),
    ("maxretries", "max_attempts"),
    ("onfailure", "failure_policy"),
    ("onerror", "failure_policy"),
    ("backoff", "backoff_ms"),
    ("policy", "mode"),
    ("result", "result_policy"),
    ("needs", "depends_on"),
    ("after", "depends_on"),
    ("requires", "depends_on"),
    ("args", "input"),
    ("arguments", "input"),
    ("parameters", "input"),
    ("tool", "executor"),
    ("timeout", "timeout_ms"),
    ("delay", "delay_ms"),
];

/// The field among `known` that has the meaning or nearly the spelling of `name`.
pub(crate) fn field<'a>(name: &str, candidates: &'a [String]) -> Option<&'a str> {
    let squeezed = squeeze(name);
    let of_other_formats = FIELDS.iter().find(|(other, _)| *other == squeezed);
    let exact = candidates.iter().find(|field| {
        let is_meant = of_other_formats.is_some_and(|(_, ours)| ours == field);
        is_meant || squeeze(field) == squeezed
    });
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

/// Edit distance, of the first 64 bytes.
fn distance(left: &str, right: &str) -> usize {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    // Bounded, because the cost is the product of both lengths.
    let (left, right) = (&left[..left.len().min(64)], &right[..right.len().min(64)]);
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let changed = corner + usize::from(a != b);
            corner = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(corner + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        for (left, right, edits) in [
            ("read", "raed", 2),
            ("read", "reads", 1),
            ("", "ab", 2),
            ("a", "a", 0),
        ] {
            assert_eq!(distance(left, right), edits, "{left} {right}");
        }
    }

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
