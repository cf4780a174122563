//! Fixed-length directory names from texts of any length.

use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest};

/// Bytes of the hash that form the name: the first 128 bits.
const BYTES: usize = 16;

/// True if a name has the form of a [`short_hash`].
pub(crate) fn is_short_hash(name: &str) -> bool {
    name.len() == BYTES * 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// First 32 hex digits of the SHA-256 of a text.
pub(crate) fn short_hash(text: &str) -> String {
    let hash = digest(&SHA256, text.as_bytes());
    hash.as_ref()
        .iter()
        .take(BYTES)
        .fold(String::new(), |mut name, byte| {
            // Writing to a `String` cannot fail.
            let _ = write!(name, "{byte:02x}");
            name
        })
}
