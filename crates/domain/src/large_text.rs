//! Finds large texts at known paths of a JSON document in one pass, before a parser copies them.

use std::ops::Range;

use memchr::memchr2;

use crate::json_text::DEPTH;

/// One step of a path to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathStep {
    /// A member of an object.
    Member(&'static str),
    /// Each element of a list.
    Each,
}

/// State of the scan within one object or list.
enum ScanLevel {
    Object {
        name: Range<usize>,
        /// True if the next text is a member name.
        is_name: bool,
    },
    List,
}

/// Returns the texts of at least `least` bytes at one of `paths`, in document order, without quotes. The scan
/// ends at invalid JSON. A name with escapes matches no step.
pub fn large_texts<P: AsRef<[PathStep]>>(
    json: &[u8],
    paths: &[P],
    least: usize,
) -> Vec<Range<usize>> {
    let mut levels: Vec<ScanLevel> = Vec::new();
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => {
                let text = at + 1..end_of_text(json, at + 1);
                // Past the quote: the content of a text is never structure.
                at = text.end + 1;
                if let Some(ScanLevel::Object {
                    name,
                    is_name: true,
                }) = levels.last_mut()
                {
                    *name = text;
                } else if text.len() >= least && matches_path(json, &levels, paths) {
                    found.push(text);
                }
                continue;
            }
            // The parser rejects deeper documents; the texts found so far stay valid.
            b'{' | b'[' if levels.len() == DEPTH => return found,
            b'{' => levels.push(ScanLevel::Object {
                name: 0..0,
                is_name: true,
            }),
            b'[' => levels.push(ScanLevel::List),
            b'}' | b']' => {
                levels.pop();
            }
            b',' | b':' => {
                if let Some(ScanLevel::Object { is_name, .. }) = levels.last_mut() {
                    // Surplus closing brackets are invalid JSON, which the parser reports.
                    *is_name = *byte == b',';
                }
            }
            _ => {}
        }
        // A comma leads to a name, a colon to a value.
        at += 1;
    }
    found
}

/// Returns the offset of the closing quote, or of the end of the document.
fn end_of_text(json: &[u8], mut at: usize) -> usize {
    while let Some(rest) = json.get(at..) {
        match memchr2(b'"', b'\\', rest) {
            Some(step) if rest[step] == b'"' => return at + step,
            // Skips the escaped character, so that an escaped quote does not end the text.
            Some(step) => at += step + 2,
            None => break,
        }
    }
    json.len()
}

fn matches_path<P: AsRef<[PathStep]>>(json: &[u8], levels: &[ScanLevel], paths: &[P]) -> bool {
    let is_step = |(level, step): (&ScanLevel, &PathStep)| match (level, step) {
        (ScanLevel::Object { name, .. }, PathStep::Member(member)) => {
            &json[name.clone()] == member.as_bytes()
        }
        (ScanLevel::List, PathStep::Each) => true,
        _ => false,
    };
    let is_path =
        |path: &[PathStep]| path.len() == levels.len() && levels.iter().zip(path).all(is_step);
    paths.iter().any(|path| is_path(path.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::PathStep::{Each, Member};
    use super::*;

    const PATHS: &[&[PathStep]] = &[
        &[Member("input"), Member("contents"), Each, Member("image")],
        &[Member("data")],
    ];

    fn check(json: &str, expected: &[&str]) {
        let found = large_texts(json.as_bytes(), PATHS, 4);
        let found: Vec<_> = found.into_iter().map(|range| &json[range]).collect();
        assert_eq!(found, expected, "{json}");
    }

    #[test]
    fn finds_large_texts_at_given_paths() {
        check(
            r#"{"input": {"contents": [{"image": "AAAA"}, {"image":"BBBB", "x": 1}]}}"#,
            &["AAAA", "BBBB"],
        );
        check(r#"{"data":"a\"b\\", "input":{}}"#, &[r#"a\"b\\"#]);
        check(r#"{"x":{"y":[1,"data"]},"data":"CCCC"}"#, &["CCCC"]);
    }

    #[test]
    fn skips_other_paths_and_small_texts() {
        for json in [
            r#"{"data":"AAA"}"#,
            r#"{"other":"AAAA","data":{"data":"AAAA"}}"#,
            r#"["data","AAAA"]"#,
            r#"{"input":{"contents":{"image":"AAAA"}}}"#,
            r#"{"input":{"contents":[["AAAA"],{"imag\u0065":"AAAA"}]}}"#,
            r#""AAAA""#,
            "",
        ] {
            check(json, &[]);
        }
    }

    #[test]
    fn ends_on_malformed_documents() {
        for json in [
            r#"{"data":"AAAA"#,
            r#"{"data":"AAAA\"#,
            "}}]]{",
            &"[".repeat(1000),
        ] {
            large_texts(json.as_bytes(), PATHS, 4);
        }
    }
}
