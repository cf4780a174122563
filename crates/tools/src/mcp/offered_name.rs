//! Tool names that models accept: 1 to 64 letters, digits, `_` and `-`.

use secrets::digest::sha256_hex;

/// Maximum length that all providers accept.
const LONGEST: usize = 64;
/// Number of hash digits that keep shortened names distinct.
const HASH: usize = 8;

/// The catalog name of a tool. Valid names stay. In others, `_` replaces invalid characters and the name ends
/// with a prefix of its SHA-256. The result is deterministic and distinct.
pub(super) fn offered_name(name: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    if (1..=LONGEST).contains(&name.len()) && name.chars().all(is_plain) {
        return name.to_owned();
    }
    let plain = name
        .chars()
        .map(|letter| if is_plain(letter) { letter } else { '_' });
    let mut offered: String = plain.take(LONGEST - HASH - 1).collect();
    offered.push('_');
    offered.extend(sha256_hex(name.as_bytes()).chars().take(HASH));
    offered
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn converts_names_to_model_compatible_ones() {
        assert_eq!(offered_name("get-sum_2"), "get-sum_2");
        assert_eq!(offered_name(&"x".repeat(64)), "x".repeat(64));
        let long = "x".repeat(70);
        let names = [
            "a.b",
            "a/b",
            "a:b",
            "a_b",
            &long,
            &format!("{long}y"),
            "ä",
            "",
        ];
        let offered: BTreeSet<_> = names.iter().map(|name| offered_name(name)).collect();
        assert_eq!(offered.len(), names.len(), "{offered:?}");
        for name in &offered {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
            assert!(
                (1..=64).contains(&name.len()) && name.bytes().all(is_plain),
                "{name}"
            );
        }
        assert!(offered_name("a.b").starts_with("a_b_"));
        assert_eq!(offered_name("a.b"), offered_name("a.b"));
    }
}
