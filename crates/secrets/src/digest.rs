//! SHA-256 in the format of the tables.

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

/// The SHA-256 of `bytes`.
pub fn sha256(bytes: &[u8]) -> [u8; SHA256_OUTPUT_LEN] {
    let mut result = [0; SHA256_OUTPUT_LEN];
    result.copy_from_slice(digest(&SHA256, bytes).as_ref());
    result
}

/// The lower-case hex SHA-256 of `bytes`.
pub fn sha256_hex(bytes: impl AsRef<[u8]>) -> String {
    hex(&sha256(bytes.as_ref()))
}

/// Lower-case hex, the format of digests in the tables.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from(b"0123456789abcdef"[usize::from(half)]);
    let digits = bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    digits.collect()
}
