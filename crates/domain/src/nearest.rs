//! Suggestion for a mistyped name.

/// Minimum Jaro-Winkler similarity of a suggestion.
const SIMILARITY: f64 = 0.84;

/// Returns the known name that is most similar to `name`, if it is similar enough. Ignores ASCII case.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_ascii_lowercase();
    let rated = names.into_iter().map(|names| {
        // Lower case only for the comparison: the suggestion keeps the registered spelling.
        let similarity = strsim::jaro_winkler(&name, &names.to_ascii_lowercase());
        (names, similarity)
    });
    let best = rated.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    // A distant suggestion would mislead more than none.
    (best.1 >= SIMILARITY).then_some(best.0)
}

#[cfg(test)]
mod tests {
    use protocol::result::ResultType;

    use super::*;

    #[test]
    fn suggests_similar_names_only() {
        for (name, expected) in [
            ("message.part", Some("message.delta")),
            ("message.complete", Some("message.completed")),
            ("Run.Complete", Some("run.completed")),
            ("tool.started", Some("tool.call.started")),
            ("vendor.thing", None),
            ("", None),
        ] {
            let names = ResultType::ALL.iter().map(|kind| kind.as_str());
            assert_eq!(nearest(name, names), expected, "{name}");
        }
    }
}
