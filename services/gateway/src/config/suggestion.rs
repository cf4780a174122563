//! "Did you mean": the known name that is closest to a written one.

/// The closest candidate, if it is close enough to be meant.
pub(crate) fn closest<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    const CLOSE: f64 = 0.8;
    let scored = candidates.into_iter().map(|name| {
        let score = strsim::jaro_winkler(&written.to_lowercase(), &name.to_lowercase());
        (score, name)
    });
    let best = scored.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (best.0 >= CLOSE).then_some(best.1)
}

/// Advice for an unknown name: the closest known name, or all of them.
pub(super) fn instead(written: &str, candidates: &[&str]) -> String {
    match closest(written, candidates.iter().copied()) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("known are {}", candidates.join(", ")),
    }
}

/// Fault of a value that is none of `choices`.
pub(super) fn must_be_one_of(written: &str, choices: &[&str]) -> String {
    let meant = closest(written, choices.iter().copied());
    let meant = meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"));
    format!("must be one of {}{meant}", choices.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_close_names_only() {
        let names = ["agents", "auth", "egress", "listen", "public_url"];
        for (written, meant) in [
            ("agent", Some("agents")),
            ("agentz", Some("agents")),
            ("Egress", Some("egress")),
            ("lsiten", Some("listen")),
            ("public_uri", Some("public_url")),
            ("port", None),
            ("x", None),
        ] {
            assert_eq!(closest(written, names), meant, "{written}");
        }
        assert_eq!(instead("agent", &names), "did you mean agents?");
        assert_eq!(instead("x", &["a", "b"]), "known are a, b");
        let choices = ["openai", "anthropic"];
        for (written, meant) in [("opneai", "; did you mean openai?"), ("x", "")] {
            let expected = format!("must be one of openai, anthropic{meant}");
            assert_eq!(must_be_one_of(written, &choices), expected);
        }
    }
}
