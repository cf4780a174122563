//! Keep-alives among the data of a body.

use serde::Deserialize;

/// Maximum bytes of a keep-alive. Longer data are not parsed for it.
const MAX_BYTES: usize = 128;
/// Words that servers send to keep a stream open. No result consists of one.
const WORDS: [&str; 6] = [
    "ping",
    "pong",
    "heartbeat",
    "keepalive",
    "keep-alive",
    "keep_alive",
];

/// True for a keep-alive: a word, or an object of this type that names no run.
pub(super) fn is_keep_alive(data: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Named<'a> {
        run_id: Option<serde::de::IgnoredAny>,
        #[serde(rename = "type")]
        kind: Option<&'a str>,
        event: Option<&'a str>,
    }
    let data = data.trim_ascii();
    if data.len() > MAX_BYTES {
        return false;
    }
    if !data.starts_with(b"{") {
        let word = data
            .strip_prefix(b"\"")
            .and_then(|word| word.strip_suffix(b"\""));
        return is_word(word.unwrap_or(data));
    }
    let named: Option<Named<'_>> = serde_json::from_slice(data).ok();
    named.is_some_and(|named| {
        let name = named.kind.or(named.event);
        named.run_id.is_none() && name.is_some_and(|name| is_word(name.as_bytes()))
    })
}

fn is_word(text: &[u8]) -> bool {
    let mut words = WORDS.iter();
    words.any(|word| text.eq_ignore_ascii_case(word.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_and_typed_objects_are_keep_alives() {
        for (data, expected) in [
            ("ping", true),
            (" PING ", true),
            ("\"heartbeat\"", true),
            ("keep-alive", true),
            (r#"{"type":"ping"}"#, true),
            (r#"{"event":"heartbeat","at":1}"#, true),
            (r#"{"run_id":"r","type":"ping"}"#, false),
            (r#"{"type":"text","event":"ping"}"#, false),
            ("hello", false),
            ("{}", false),
            ("[DONE]", false),
            ("null", false),
            ("", false),
            (r#"{"type":"ping""#, false),
        ] {
            assert_eq!(is_keep_alive(data.as_bytes()), expected, "{data}");
        }
        let long = format!(r#"{{"type":"ping","more":"{}"}}"#, "x".repeat(MAX_BYTES));
        assert!(!is_keep_alive(long.as_bytes()));
    }
}
