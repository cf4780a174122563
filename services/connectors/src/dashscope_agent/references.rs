//! Citation marks within the text: `<ref>[1]</ref>` becomes `[1]`, and a list of the documents follows the text.

use serde_json::Value;

use crate::upstream::json::{filled, text_of};

const OPEN: &str = "<ref>";
const CLOSE: &str = "</ref>";
/// Maximum documents that one answer lists.
const MAX_DOCUMENTS: usize = 50;

/// Removes the marks from a text that arrives in pieces.
#[derive(Debug, Default)]
pub(super) struct CitationFilter {
    is_inside: bool,
    /// The end of the text so far, if it may be the beginning of a mark.
    held: String,
    /// The text within marks.
    cited: String,
    /// Names of documents by their id, in the order of their first occurrence.
    documents: Vec<(String, String)>,
}

impl CitationFilter {
    /// The next piece of the text, without marks.
    pub(super) fn push(&mut self, piece: &str) -> String {
        let text = std::mem::take(&mut self.held) + piece;
        let (mut rest, mut output) = (text.as_str(), String::new());
        loop {
            let mark = if self.is_inside { CLOSE } else { OPEN };
            let found = rest.find(mark);
            // Hold the beginning of a mark until the next piece decides.
            let end = found.unwrap_or_else(|| rest.len() - begun(rest, mark));
            output.push_str(&rest[..end]);
            if self.is_inside {
                self.cited.push_str(&rest[..end]);
            }
            if found.is_none() {
                rest[end..].clone_into(&mut self.held);
                return output;
            }
            self.is_inside = !self.is_inside;
            rest = &rest[end + mark.len()..];
        }
    }

    /// Stores the documents that an event names.
    pub(super) fn learn(&mut self, documents: &Value) {
        for document in documents.as_array().into_iter().flatten() {
            let name = filled(&document["doc_name"]).or_else(|| filled(&document["title"]));
            let (Some(id), Some(name)) = (text_of(&document["index_id"]), name) else {
                continue;
            };
            let is_listed = self.documents.iter().any(|(other, _)| *other == id);
            if !is_listed && self.documents.len() < MAX_DOCUMENTS {
                self.documents.push((id, name.to_owned()));
            }
        }
    }

    /// The rest of the text, and the list of the cited documents below a heading.
    pub(super) fn finish(&mut self, line: &str) -> String {
        let mut text = std::mem::take(&mut self.held);
        let is_cited = |id: &str| self.cited.contains(&format!("[{id}]"));
        let has_cited = self.documents.iter().any(|(id, _)| is_cited(id));
        let listed = self
            .documents
            .iter()
            // Without any citation list all documents.
            .filter(|(id, _)| !has_cited || is_cited(id));
        // Parts of one document have an id each, so merge them by name.
        let mut lines: Vec<(&str, String)> = Vec::new();
        for (id, name) in listed {
            match lines.iter_mut().find(|(other, _)| other == name) {
                Some((_, ids)) => ids.extend(["[", id, "]"]),
                None => lines.push((name, format!("[{id}]"))),
            }
        }
        if !lines.is_empty() {
            text.extend(["\n\n", line]);
        }
        for (name, ids) in &lines {
            text.extend(["\n", ids, " ", name]);
        }
        text
    }
}

/// Length in bytes of the longest end of a text that begins a mark.
fn begun(text: &str, mark: &str) -> usize {
    let lengths = (1..mark.len()).rev();
    lengths
        .into_iter()
        .find(|length| text.ends_with(&mark[..*length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn marks_are_taken_out_at_any_cut() {
        let text = "Yes<ref>[1]</ref>, <b>no</b><ref>[2][3]</ref> <re";
        for at in 0..text.len() {
            let mut references = CitationFilter::default();
            let mut output = references.push(&text[..at]) + &references.push(&text[at..]);
            output.push_str(&references.finish("From:"));
            assert_eq!(output, "Yes[1], <b>no</b>[2][3] <re", "{at}");
            assert_eq!(references.cited, "[1][2][3]", "{at}");
        }
    }

    #[test]
    fn cited_documents_are_listed_once() {
        let documents = json!([
            {"index_id": "1", "doc_name": "a.pdf"}, {"index_id": 2, "title": "b.pdf"},
            {"index_id": "3", "doc_name": "a.pdf"}, {"index_id": "1", "doc_name": "a.pdf"}, {"doc_name": "c.pdf"},
        ]);
        let listed = |text: &str| {
            let mut references = CitationFilter::default();
            references.learn(&documents);
            references.push(text);
            references.finish("From:")
        };
        assert_eq!(listed("<ref>[3]</ref>"), "\n\nFrom:\n[3] a.pdf");
        assert_eq!(listed("Yes"), "\n\nFrom:\n[1][3] a.pdf\n[2] b.pdf");
    }
}
