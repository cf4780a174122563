//! Base64 files of a request body, decoded in place and in pieces, so that no parser copies them.

use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use domain::artifact::{FILE_MARK, INLINE_BYTES};
use domain::large_text::{PathStep, large_texts};

/// Bytes of base64 in one piece; a multiple of four, so that each piece decodes by itself.
const PIECE_BYTES: usize = 64 * 1024;
/// Separator of the media type and the base64 in a `data:` URL.
const BASE64: &str = ";base64,";
/// Maximum length of the head of a `data:` URL.
const HEAD_BYTES: usize = 256;

/// Files that were taken out of a body. The document holds a mark for each: `runnel-file:` and the SHA-256. A
/// mark from a client can only name a file of the same body.
#[derive(Clone, Debug, Default)]
pub struct BodyFiles(Arc<[BodyFile]>);

#[derive(Debug)]
pub(super) struct BodyFile {
    pub(super) sha256: String,
    pub(super) size: u64,
    /// The base64 in the form of the body, with escapes.
    text: Bytes,
}

impl BodyFiles {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The file of a mark.
    pub(super) fn find(&self, mark: &str) -> Option<&BodyFile> {
        let sha256 = mark.strip_prefix(FILE_MARK)?;
        self.0.iter().find(|file| file.sha256 == sha256)
    }

    /// Takes large files out of a JSON body at these paths. Returns the document with marks, and the files. Invalid
    /// base64 stays in the document.
    pub async fn take_out<P: AsRef<[PathStep]>>(body: &Bytes, paths: &[P]) -> (Bytes, Self) {
        let mut files: Vec<BodyFile> = Vec::new();
        let mut rest = BytesMut::new();
        let mut copied = 0;
        // The text may be a third larger than its bytes, so short texts need no decoding.
        for range in large_texts(body, paths, INLINE_BYTES / 3 * 4) {
            let text = body.slice(range.clone());
            let head = head_of(&text);
            let text = text.slice(head..);
            let Some((sha256, size)) = digest(Pieces::escaped(&text)).await else {
                continue;
            };
            if size <= INLINE_BYTES as u64 {
                continue;
            }
            rest.extend_from_slice(&body[copied..range.start + head]);
            rest.extend_from_slice(FILE_MARK.as_bytes());
            rest.extend_from_slice(sha256.as_bytes());
            copied = range.end;
            // Two marks with one digest share one file.
            if files.iter().all(|file| file.sha256 != sha256) {
                files.push(BodyFile { sha256, size, text });
            }
        }
        if files.is_empty() {
            // The usual body: `Bytes` are shared, not copied.
            return (body.clone(), Self::default());
        }
        rest.extend_from_slice(&body[copied..]);
        (rest.freeze(), Self(files.into()))
    }
}

impl BodyFile {
    pub(super) fn pieces(&self) -> Pieces<'_> {
        Pieces::escaped(&self.text)
    }
}

/// Start of the base64 in a `data:` URL; 0 for other texts.
fn head_of(text: &[u8]) -> usize {
    let head = &text[..text.len().min(HEAD_BYTES)];
    let comma = head
        .windows(BASE64.len())
        .position(|window| window == BASE64.as_bytes());
    match comma {
        Some(at) if head.starts_with(b"data:") => at + BASE64.len(),
        _ => 0,
    }
}

/// Media type of a `data:` URL, and the base64 of the URL or of a bare text.
pub(super) fn declared_type(text: &str) -> (Option<&str>, &str) {
    let head = head_of(text.as_bytes());
    let url = text.get(..head).and_then(|head| head.strip_prefix("data:"));
    let declared = url.and_then(|url| url.strip_suffix(BASE64));
    (declared, text.get(head..).unwrap_or_default())
}

/// SHA-256 and size of the decoded text; `None`: invalid base64.
pub(super) async fn digest(mut pieces: Pieces<'_>) -> Option<(String, u64)> {
    let (mut digest, mut size) = (Context::new(&SHA256), 0);
    while let Some(piece) = pieces.next() {
        let piece = piece.ok()?;
        digest.update(&piece);
        size += piece.len() as u64;
        // Yields, so that large files do not block other tasks of this worker.
        tokio::task::yield_now().await;
    }
    Some((store::hex(digest.finish().as_ref()), size))
}

/// A text that is not base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoBase64;

/// Decodes base64 in pieces.
pub(super) struct Pieces<'a> {
    rest: &'a [u8],
    is_escaped: bool,
}

impl<'a> Pieces<'a> {
    /// For a text that a parser has read.
    pub(super) fn plain(text: &'a str) -> Self {
        Self {
            rest: text.as_bytes(),
            is_escaped: false,
        }
    }

    /// For a text between the quotes of a JSON document, where slashes may be escaped.
    fn escaped(text: &'a [u8]) -> Self {
        Self {
            rest: text,
            is_escaped: true,
        }
    }

    pub(super) fn next(&mut self) -> Option<Result<Vec<u8>, NoBase64>> {
        if self.rest.is_empty() {
            return None;
        }
        let mut text = Vec::with_capacity(PIECE_BYTES);
        while text.len() < PIECE_BYTES && !self.rest.is_empty() {
            let available = self.rest.len().min(PIECE_BYTES - text.len());
            let plain = &self.rest[..available];
            match plain.iter().position(|byte| *byte == b'\\') {
                None => {
                    text.extend_from_slice(plain);
                    self.rest = &self.rest[available..];
                }
                // JSON allows `\/`; base64 has no other character that an encoder escapes.
                Some(at) if self.is_escaped && self.rest.get(at + 1) == Some(&b'/') => {
                    text.extend_from_slice(&plain[..at]);
                    text.push(b'/');
                    self.rest = &self.rest[at + 2..];
                }
                Some(_) => return Some(Err(NoBase64)),
            }
        }
        // Padding is allowed at the end only.
        if !self.rest.is_empty() && text.contains(&b'=') {
            return Some(Err(NoBase64));
        }
        Some(STANDARD.decode(text).map_err(|_| NoBase64))
    }
}

#[cfg(test)]
mod tests {
    use domain::large_text::PathStep::{Each, Member};

    use super::*;

    const PATHS: &[&[PathStep]] = &[&[Member("files"), Each]];

    fn decoded(mut pieces: Pieces<'_>) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(piece) = pieces.next() {
            all.extend(piece.ok()?);
        }
        Some(all)
    }

    #[tokio::test]
    async fn replaces_large_files_with_marks() {
        let file: Vec<u8> = (0..200_001_u32)
            .map(|n| n.to_le_bytes()[0] ^ 0xff)
            .collect();
        let text = STANDARD.encode(&file);
        let escaped = text.replace('/', "\\/");
        assert_ne!(text, escaped);
        let small = STANDARD.encode(&file[..INLINE_BYTES]);
        let broken = format!("{}={text}", &text[..3]);
        let body = format!(
            r#"{{"files":["{text}","data:image\/png;base64,{escaped}","{small}","{broken}"],"other":["{text}"]}}"#
        );
        let body = Bytes::from(body);
        let (rest, files) = BodyFiles::take_out(&body, PATHS).await;
        let rest: serde_json::Value = serde_json::from_slice(&rest).unwrap();
        let mark = rest["files"][0].as_str().unwrap();
        let found = files.find(mark).unwrap();
        assert_eq!(found.size, file.len() as u64);
        assert_eq!(decoded(found.pieces()).unwrap(), file);
        let url = rest["files"][1].as_str().unwrap();
        assert_eq!(declared_type(url), (Some("image/png"), mark));
        assert_eq!(rest["files"][2], small);
        assert_eq!(rest["files"][3], broken);
        assert_eq!(rest["other"][0], text);
        assert_eq!(files.0.len(), 1, "the same bytes are one file");
        assert!(files.find("runnel-file:00").is_none());
    }

    #[tokio::test]
    async fn returns_bodies_without_files_unchanged() {
        for body in [r#"{"files":["a"]}"#, "", "{", r#"{"files":[1]}"#] {
            let body = Bytes::from(body);
            let (rest, files) = BodyFiles::take_out(&body, PATHS).await;
            assert_eq!(rest, body);
            assert!(files.is_empty());
        }
    }

    #[test]
    fn decodes_only_complete_base64() {
        let bytes = vec![7; 100_000];
        let text = STANDARD.encode(&bytes);
        assert_eq!(decoded(Pieces::plain(&text)).unwrap(), bytes);
        for wrong in [&text[1..], "AA\\/A", "no base64", "AA==AAAA"] {
            assert!(decoded(Pieces::plain(wrong)).is_none(), "{wrong:.20}");
        }
        let inner = format!("{}A==={text}", &text[..PIECE_BYTES - 4]);
        assert!(decoded(Pieces::plain(&inner)).is_none());
    }
}
