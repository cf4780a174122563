//! Identifiers of graphs, actions and sections.

use std::fmt;

use serde::{Deserialize, Serialize};

const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Name of an accepted graph: `g_` and 26 characters of base32.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GraphId(pub String);

impl GraphId {
    /// The id of these 128 random bits, which the caller draws.
    pub fn from_random(bits: u128) -> Self {
        Self(format!("g_{}", base32(&bits.to_be_bytes())))
    }
}

impl fmt::Display for GraphId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Name of an action, `[A-Za-z][A-Za-z0-9_-]{0,63}`, or of an instance of `for_each`: `name[3]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ActionId(pub String);

impl ActionId {
    /// The id of the instance at `index` of this fan-out.
    #[must_use]
    pub fn instance(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// The text of the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ActionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for ActionId {
    fn from(id: &str) -> Self {
        Self(id.to_owned())
    }
}

/// True if a declaration may use this as the id of an action.
pub fn is_action_id(id: &str) -> bool {
    is_name(id, 64, |byte| byte == b'_' || byte == b'-')
}

/// True if this names a Markdown section.
pub fn is_section_id(id: &str) -> bool {
    is_name(id, 128, |byte| matches!(byte, b'_' | b'-' | b'.'))
}

/// True if this names a graph: letters, digits, `_` and `-`, at most 64.
pub fn is_graph_id(id: &str) -> bool {
    is_action_id(id)
}

fn is_name(id: &str, longest: usize, is_mark: impl Fn(u8) -> bool) -> bool {
    let begins = id
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic());
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || is_mark(byte);
    begins && id.len() <= longest && id.bytes().all(is_inner)
}

/// Lower-case base32 without padding.
pub(crate) fn base32(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 8 / 5 + 1);
    let (mut buffer, mut bits) = (0_u32, 0_u32);
    for &byte in bytes {
        buffer = (buffer << 8) | u32::from(byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(BASE32[(buffer >> bits) as usize & 31]));
        }
        // The used bits are cleared, so that the shift never overflows.
        buffer &= (1 << bits) - 1;
    }
    if bits > 0 {
        text.push(char::from(BASE32[(buffer << (5 - bits)) as usize & 31]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graph_ids_have_26_characters() {
        assert_eq!(GraphId::from_random(0).0, format!("g_{}", "a".repeat(26)));
        assert_eq!(GraphId::from_random(u128::MAX).0.len(), 28);
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
    }

    #[test]
    fn refuses_ids_outside_the_grammar() {
        for (id, is_valid) in [
            ("find_1", true),
            ("a-b", true),
            ("1a", false),
            ("a.b", false),
            ("a/b", false),
            ("a[0]", false),
            ("", false),
            ("é", false),
        ] {
            assert_eq!(is_action_id(id), is_valid, "{id}");
        }
        assert!(!is_action_id(&"a".repeat(65)));
        assert!(is_section_id("review.prompt"));
    }
}
