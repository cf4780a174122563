//! SHA-256 of what is hashed here.

use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest as of};

/// The digest of `data`, 32 bytes.
pub fn digest(data: &[u8]) -> Vec<u8> {
    of(&SHA256, data).as_ref().to_vec()
}

/// The digest of `data` as 64 hexadecimal digits.
pub fn hex(data: impl AsRef<[u8]>) -> String {
    let mut text = String::with_capacity(64);
    for byte in digest(data.as_ref()) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
