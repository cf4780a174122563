//! Identifiers and paths that a summary must keep, because a model cannot restore them. They are collected from
//! the summarised messages into blocks that are never shortened.

mod scan; // identifiers in texts, paths in JSON

use protocol::message::{Message, MessageContent};

use crate::context::estimate;

/// Maximum number of references of all kinds.
pub const MAX_REFERENCES: usize = 40;
/// Maximum number of file paths among them.
pub const MAX_FILES: usize = 20;

const IDENTIFIERS: [&str; 2] = ["<critical_refs>", "</critical_refs>"];
const FILES: [&str; 2] = ["<files>", "</files>"];
const VERBATIM: &str = "Use these exactly as written; never change, shorten or invent one.";

/// Identifiers and paths in order of first occurrence, at most [`MAX_REFERENCES`]: beyond that, the oldest half and the
/// newest half.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceList {
    identifiers: Vec<String>,
    files: Vec<String>,
}

impl ReferenceList {
    /// References in texts, calls and results of messages.
    pub fn of_messages(messages: &[Message]) -> Self {
        let mut found = scan::ReferenceScan::default();
        for message in messages {
            match &message.content {
                Some(MessageContent::Text(text)) => found.read(text),
                Some(MessageContent::Parts(parts)) => {
                    let texts = parts.iter().filter_map(|part| part.text.as_deref());
                    texts.for_each(|text| found.read(text));
                }
                None => {}
            }
            let calls = message.tool_calls.iter().flatten();
            calls.for_each(|call| found.read(&call.function.arguments));
        }
        Self::of_found(found)
    }

    /// References in one text.
    pub fn of_text(text: &str) -> Self {
        let mut found = scan::ReferenceScan::default();
        found.read(text);
        Self::of_found(found)
    }

    /// Union with later references.
    #[must_use]
    pub fn merged(self, later: Self) -> Self {
        let mut found = scan::ReferenceScan::default();
        for identifier in self.identifiers.into_iter().chain(later.identifiers) {
            found.identifier(&identifier);
        }
        for file in self.files.into_iter().chain(later.files) {
            found.file(&file);
        }
        Self::of_found(found)
    }

    fn of_found(found: scan::ReferenceScan) -> Self {
        // Files and strong identifiers first; weak ones, which may be plain words, get the rest.
        let files = found.files.ends(MAX_FILES);
        let limit = MAX_REFERENCES - files.len();
        let mut identifiers = found.strong.ends(limit);
        let weak = found.weak.ends(limit - identifiers.len());
        identifiers.extend(weak);
        // A part of a listed path repeats it.
        identifiers.retain(|one| !files.iter().any(|file| file.contains(one.as_str())));
        Self { identifiers, files }
    }

    /// Opaque identifiers.
    pub fn identifiers(&self) -> &[String] {
        &self.identifiers
    }

    /// Paths.
    pub fn files(&self) -> &[String] {
        &self.files
    }

    pub fn is_empty(&self) -> bool {
        self.identifiers.is_empty() && self.files.is_empty()
    }

    /// Blocks of a summary; empty without references.
    pub fn render(&self) -> String {
        let mut blocks = Vec::new();
        if !self.identifiers.is_empty() {
            blocks.push(block(IDENTIFIERS, Some(VERBATIM), &self.identifiers));
        }
        if !self.files.is_empty() {
            blocks.push(block(FILES, None, &self.files));
        }
        blocks.join("\n")
    }

    /// References that fit into `tokens`, files first. A reference is complete or left out.
    #[must_use]
    pub fn within(&self, tokens: u64) -> Self {
        if estimate::text(&self.render()) <= tokens {
            return self.clone();
        }
        let mut fitting = Self::default();
        for file in &self.files {
            fitting.files.push(file.clone());
            if estimate::text(&fitting.render()) > tokens {
                fitting.files.pop();
            }
        }
        for identifier in &self.identifiers {
            fitting.identifiers.push(identifier.clone());
            if estimate::text(&fitting.render()) > tokens {
                fitting.identifiers.pop();
            }
        }
        fitting
    }

    /// Takes the blocks out of a summary; returns the other text and the references.
    pub fn taken_from(summary: &str) -> (String, Self) {
        let mut found = scan::ReferenceScan::default();
        let (rest, identifiers) = without_block(summary, IDENTIFIERS);
        for identifier in &identifiers {
            found.identifier(identifier);
        }
        let (rest, files) = without_block(&rest, FILES);
        for file in &files {
            found.file(file);
        }
        (rest, Self::of_found(found))
    }
}

fn block([open, close]: [&str; 2], instruction: Option<&str>, lines: &[String]) -> String {
    let mut block = vec![open.to_owned()];
    block.extend(instruction.map(str::to_owned));
    block.extend(lines.iter().map(|line| format!("- {line}")));
    block.push(close.to_owned());
    block.join("\n")
}

/// Text without its last block of this name, and the lines of the block.
fn without_block(text: &str, [open, close]: [&str; 2]) -> (String, Vec<String>) {
    // The last block is ours: quoted text before it may imitate one.
    let Some((before, after)) = text.rsplit_once(open) else {
        return (text.to_owned(), Vec::new());
    };
    let (inside, after) = after.split_once(close).unwrap_or((after, ""));
    let lines = inside.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && *line != VERBATIM);
    let lines = lines.map(|line| line.strip_prefix("- ").unwrap_or(line).to_owned());
    let rest = format!("{}{}", before.trim_end(), after);
    (rest, lines.collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::context::testing::{Generator, call};

    #[test]
    fn keeps_call_ids_and_result_paths() {
        let mut asks = call(&["c1"]);
        asks.tool_calls.as_mut().unwrap()[0].function.arguments =
            json!({"order": "acme:eu:4711", "path": "/data/in put.csv"}).to_string();
        let answer = json!({"files": [{"path": "/out/report.pdf"}], "ticket": "INC-2026-0042"});
        let found = ReferenceList::of_messages(&[asks, Message::text("tool", answer.to_string())]);
        assert_eq!(found.identifiers(), ["acme:eu:4711", "INC-2026-0042"]);
        assert_eq!(found.files(), ["/data/in put.csv", "/out/report.pdf"]);
    }

    #[test]
    fn reference_blocks_round_trip() {
        let identifiers: Vec<_> = (0..12).map(|n| format!("job_eu_{n}")).collect();
        let files = vec!["/a/b c.txt".to_owned(), "relative.md".to_owned()];
        let references = ReferenceList { identifiers, files };
        let text = format!("Before.\n{}\nAfter.", references.render());
        let (rest, read) = ReferenceList::taken_from(&text);
        assert_eq!(read, references);
        assert_eq!(rest, "Before.\nAfter.");
        assert_eq!(ReferenceList::default().render(), "");
        assert_eq!(
            ReferenceList::taken_from("nothing").1,
            ReferenceList::default()
        );
    }

    #[test]
    fn keeps_oldest_and_newest_of_40_references() {
        let text: Vec<_> = (0..100).map(|n| format!("job_eu_{n}")).collect();
        let text = text.join(" ");
        let found = ReferenceList::of_text(&text);
        assert_eq!(found.identifiers().len(), MAX_REFERENCES);
        assert_eq!(found.identifiers()[0], "job_eu_0");
        assert_eq!(found.identifiers()[19], "job_eu_19");
        assert_eq!(found.identifiers()[39], "job_eu_99");
        let paths: Vec<_> = (0..100)
            .map(|n| json!({"path": format!("/f{n}")}))
            .collect();
        let both = found.merged(ReferenceList::of_text(&json!(paths).to_string()));
        assert_eq!(both.files().len(), MAX_FILES);
        assert_eq!(
            both.identifiers().len() + both.files().len(),
            MAX_REFERENCES
        );
    }

    #[test]
    fn keeps_oldest_references() {
        let mut references = ReferenceList::of_text("first_order_1 first_order_2");
        for turn in 0..300 {
            references = references.merged(ReferenceList::of_text(&format!(
                "job_eu_{turn} doc_{turn}_x"
            )));
            let (_, read) = ReferenceList::taken_from(&references.render());
            assert_eq!(read, references);
        }
        assert_eq!(
            references.identifiers()[..2],
            ["first_order_1", "first_order_2"]
        );
        assert!(references.identifiers().contains(&"doc_299_x".to_owned()));
    }

    #[test]
    fn prefers_identifiers_over_prose() {
        let prose: Vec<_> = (b'a'..=b'z')
            .map(|c| format!("state-of-{}x", char::from(c)))
            .collect();
        let prose = prose.join(" ");
        let codes: Vec<_> = (0..30).map(|n| format!("job_eu_{n}")).collect();
        let codes = codes.join(" ");
        let found = ReferenceList::of_text(&format!("{prose} {codes}"));
        let is_code = |one: &&String| one.starts_with("job_eu_");
        assert_eq!(found.identifiers().iter().filter(is_code).count(), 30);
        assert_eq!(found.identifiers().len(), MAX_REFERENCES);
    }

    #[test]
    fn never_truncates_references() {
        let mut generator = Generator::new(3);
        let all: Vec<_> = (0..40)
            .map(|n| format!("job_{}_{n}", generator.next()))
            .collect();
        let all = all.join(" ");
        let all =
            ReferenceList::of_text(&all).merged(ReferenceList::of_text("{\"path\":\"/a/b\"}"));
        let mut largest = 0;
        for tokens in 0..700 {
            let fitting = all.within(tokens);
            assert!(estimate::text(&fitting.render()) <= tokens);
            assert!(
                fitting
                    .identifiers
                    .iter()
                    .all(|one| all.identifiers.contains(one))
            );
            let count = fitting.identifiers.len() + fitting.files.len();
            largest = largest.max(count);
        }
        assert_eq!(largest, all.identifiers.len() + all.files.len());
    }
}
