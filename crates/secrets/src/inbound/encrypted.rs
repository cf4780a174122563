//! Feishu and `WeCom`: signed requests with an encrypted content. Both use AES-256 in CBC mode.

use aws_lc_rs::cipher::{AES_256, DecryptingKey, DecryptionContext, UnboundCipherKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use aws_lc_rs::iv::FixedLength;
use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};

use super::{InboundError, InboundRequest, check_fresh, from_hex};
use crate::digest::sha256;

const IV_BYTES: usize = 16;
/// Random bytes and the length before the content of a `WeCom` message.
const WECOM_HEAD: usize = 20;
/// Length in characters of an `EncodingAESKey`: the base64 of 32 bytes without its padding.
const WECOM_KEY: usize = 43;

/// The signature header of Feishu.
pub const FEISHU_SIGNATURE: &str = "x-lark-signature";

/// Checks Feishu's signature: the hex SHA-256 of timestamp, nonce, encrypt key and body.
pub fn feishu(encrypt_key: &str, request: InboundRequest<'_>) -> Result<(), InboundError> {
    let timestamp = request.header("x-lark-request-timestamp")?;
    let nonce = request.header("x-lark-request-nonce")?;
    let sent = from_hex(request.header(FEISHU_SIGNATURE)?).ok_or(InboundError::Mismatch)?;
    check_fresh(timestamp, 1, request.now_seconds)?;
    let head = [timestamp, nonce, encrypt_key].concat();
    let signed = [head.as_bytes(), request.body].concat();
    verify_slices_are_equal(&sha256(&signed), &sent).map_err(|_| InboundError::Mismatch)
}

/// Decrypts the member `encrypt` of a Feishu request.
pub fn feishu_decrypt(encrypt_key: &str, encrypted: &str) -> Result<Vec<u8>, InboundError> {
    let bytes = STANDARD.decode(encrypted).ok();
    let bytes = bytes.ok_or(InboundError::Undecipherable)?;
    let (iv, content) = bytes
        .split_first_chunk::<IV_BYTES>()
        .ok_or(InboundError::Undecipherable)?;
    decrypt(&sha256(encrypt_key.as_bytes()), *iv, content)
}

/// A `WeCom` secret is neither `TOKEN:ENCODINGAESKEY` nor near to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a WeCom secret is TOKEN:ENCODINGAESKEY, the second with 43 characters")]
pub struct InvalidWecomSecret;

/// Token and key of a `WeCom` application. It has no `Debug` output.
pub struct WecomSecret<'a> {
    token: &'a str,
    key: [u8; 32],
}

/// Parameters of a `WeCom` request.
#[derive(Clone, Copy, Debug, Default)]
pub struct WecomQuery<'a> {
    pub msg_signature: &'a str,
    pub timestamp: &'a str,
    pub nonce: &'a str,
}

impl<'a> WecomSecret<'a> {
    /// Parses `TOKEN:ENCODINGAESKEY`.
    pub fn parse(text: &'a str) -> Result<Self, InvalidWecomSecret> {
        // Random keys have bits behind the last byte, which a strict decoder refuses.
        const KEYS: GeneralPurpose = GeneralPurpose::new(
            &alphabet::STANDARD,
            GeneralPurposeConfig::new()
                .with_decode_allow_trailing_bits(true)
                .with_decode_padding_mode(base64::engine::DecodePaddingMode::RequireNone),
        );
        let (token, key) = text.split_once(':').ok_or(InvalidWecomSecret)?;
        if token.is_empty() || key.len() != WECOM_KEY {
            return Err(InvalidWecomSecret);
        }
        let key = KEYS.decode(key).map_err(|_| InvalidWecomSecret)?;
        let key = key.try_into().map_err(|_| InvalidWecomSecret)?;
        Ok(Self { token, key })
    }

    /// Checks the SHA-1 of token, timestamp, nonce and content in their order, then decrypts the content.
    pub fn open(
        &self,
        query: WecomQuery<'_>,
        encrypted: &str,
        now_seconds: i64,
    ) -> Result<Vec<u8>, InboundError> {
        check_fresh(query.timestamp, 1, now_seconds)?;
        let mut parts = [self.token, query.timestamp, query.nonce, encrypted];
        parts.sort_unstable();
        let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        for part in parts {
            digest.update(part.as_bytes());
        }
        let sent = from_hex(query.msg_signature).ok_or(InboundError::Mismatch)?;
        verify_slices_are_equal(digest.finish().as_ref(), &sent)
            .map_err(|_| InboundError::Mismatch)?;
        let content = STANDARD.decode(encrypted).ok();
        let content = content.ok_or(InboundError::Undecipherable)?;
        let mut iv = [0; IV_BYTES];
        iv.copy_from_slice(&self.key[..IV_BYTES]);
        let plain = decrypt(&self.key, iv, &content)?;
        wecom_message(&plain).ok_or(InboundError::Undecipherable)
    }
}

/// The message in a decrypted content: random bytes, its length, the message, the receiver.
fn wecom_message(plain: &[u8]) -> Option<Vec<u8>> {
    let (head, rest) = plain.split_at_checked(WECOM_HEAD)?;
    let length = head.last_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    rest.get(..length).map(<[u8]>::to_vec)
}

/// Decrypts without the padding. `WeCom` pads to 32 bytes, so the length of the padding is 1 to 32.
fn decrypt(key: &[u8; 32], iv: [u8; IV_BYTES], content: &[u8]) -> Result<Vec<u8>, InboundError> {
    let undecipherable = |_| InboundError::Undecipherable;
    let key = UnboundCipherKey::new(&AES_256, key).map_err(undecipherable)?;
    let key = DecryptingKey::cbc(key).map_err(undecipherable)?;
    let context = DecryptionContext::Iv128(FixedLength::from(iv));
    let mut plain = content.to_vec();
    key.decrypt(&mut plain, context).map_err(undecipherable)?;
    let padding = plain.last().map_or(0, |last| usize::from(*last));
    let end = plain.len().checked_sub(padding);
    let end = end.filter(|_| (1..=32).contains(&padding));
    plain.truncate(end.ok_or(InboundError::Undecipherable)?);
    Ok(plain)
}
