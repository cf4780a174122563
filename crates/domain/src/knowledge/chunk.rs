//! Cuts a text into overlapping chunks at paragraph, sentence or word boundaries.
//!
//! Every chunk is a slice of the text with its offsets. All chunks together cover the text, so [`join`] restores
//! it.

use super::MAX_CHUNKS;

/// Chunk sizes, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSize {
    /// Maximum size of a chunk.
    pub characters: usize,
    /// Maximum overlap with the previous chunk; at most half of a chunk.
    pub overlap: usize,
}

/// A heading in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heading {
    /// Byte offset in the text.
    pub at: usize,
    /// Level, 1 for the outermost.
    pub level: u8,
    pub title: String,
}

/// A slice of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub text: String,
    /// Character offsets of the start and the end (exclusive).
    pub start: usize,
    pub end: usize,
    /// Path of headings, outermost first: `Guide > Install`.
    pub heading: Option<String>,
}

/// The text has more than [`MAX_CHUNKS`] chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("has more than {MAX_CHUNKS} chunks; cut it into several documents, or raise chunk_chars")]
pub struct TooManyChunks;

/// Cuts a text. A chunk never crosses a heading. `headings`: in text order.
pub fn chunk(
    text: &str,
    headings: &[Heading],
    size: ChunkSize,
) -> Result<Vec<Chunk>, TooManyChunks> {
    let mut chunks = Vec::new();
    let mut start = 0;
    for section in sections(text, headings) {
        start = cut_section(&section, start, size, &mut chunks)?;
    }
    Ok(chunks)
}

/// Restores the text of these chunks and its headings, for new chunking. White space between chunks is not
/// stored and becomes line breaks.
pub fn join(chunks: impl IntoIterator<Item = Chunk>) -> (String, Vec<Heading>) {
    let (mut text, mut headings) = (String::new(), Vec::<Heading>::new());
    let mut end = 0;
    for chunk in chunks {
        // One line break for each missing character keeps the offsets of later chunks.
        for _ in end..chunk.start {
            text.push('\n');
        }
        // The overlap repeats the end of the previous chunk.
        let overlap = end.saturating_sub(chunk.start);
        let new: String = chunk.text.chars().skip(overlap).collect();
        let title = chunk.heading.unwrap_or_default();
        if headings.last().map_or("", |last| last.title.as_str()) != title {
            headings.push(Heading {
                at: text.len(),
                // The level of the headings is not stored; their order and titles suffice for new chunks.
                level: 1,
                title,
            });
        }
        text.push_str(&new);
        end = end.max(chunk.end);
    }
    (text, headings)
}

struct TextSection<'a> {
    text: &'a str,
    heading: Option<String>,
}

/// Splits a text at its headings. A heading without text joins the next section.
fn sections<'a>(text: &'a str, headings: &[Heading]) -> Vec<TextSection<'a>> {
    let mut sections = Vec::new();
    let mut above: Vec<&Heading> = Vec::new();
    let (mut from, mut read_to) = (0, 0);
    let mut section_text = SectionText::default();
    for heading in headings {
        // An offset outside of the text or inside a character would panic: ignore the heading.
        let Some(before) = text.get(from..heading.at) else {
            continue;
        };
        // Each line is read once, also with many headings without text.
        section_text.read(text.get(read_to..heading.at).unwrap_or_default());
        read_to = heading.at;
        if section_text.has_own_text(above.last().copied()) {
            sections.push(TextSection {
                text: before,
                heading: path(&above),
            });
            from = heading.at;
            section_text = SectionText::default();
        }
        // A heading ends all deeper and equal ones.
        above.retain(|outer| outer.level < heading.level);
        above.push(heading);
    }
    let rest = text.get(from..).unwrap_or_default();
    sections.push(TextSection {
        text: rest,
        heading: path(&above),
    });
    sections
}

/// State of a section's text: its first non-blank line, and whether more follow.
#[derive(Default)]
struct SectionText<'a> {
    first: Option<&'a str>,
    has_more: bool,
}

impl<'a> SectionText<'a> {
    fn read(&mut self, text: &'a str) {
        // Two lines decide; the rest of a long section need not be read.
        if self.has_more {
            return;
        }
        let is_text = |line: &&str| line.chars().any(char::is_alphanumeric);
        let mut lines = text.lines().filter(is_text);
        if self.first.is_none() {
            self.first = lines.next();
        }
        self.has_more = self.first.is_some() && lines.next().is_some();
    }

    /// Returns true if the section has text other than its heading line.
    fn has_own_text(&self, under: Option<&Heading>) -> bool {
        match (self.first, under) {
            (None, _) => false,
            // The text of a section begins with the heading line itself.
            (Some(first), Some(heading)) if first.contains(heading.title.as_str()) => self.has_more,
            (Some(_), _) => true,
        }
    }
}

fn path(above: &[&Heading]) -> Option<String> {
    let titles: Vec<&str> = above
        .iter()
        .map(|heading| heading.title.as_str())
        .filter(|title| !title.is_empty())
        .collect();
    (!titles.is_empty()).then(|| titles.join(" > "))
}

/// Cuts one section that starts at character `start`. Returns the character offset after it.
fn cut_section(
    section: &TextSection<'_>,
    start: usize,
    size: ChunkSize,
    chunks: &mut Vec<Chunk>,
) -> Result<usize, TooManyChunks> {
    let (mut rest, mut at) = (section.text, start);
    loop {
        // Bounded by the size of a chunk, so that a text of megabytes is not scanned for each.
        let window = first_characters(rest, size.characters);
        let is_last = window.len() == rest.len();
        let text = if is_last {
            window
        } else {
            window
                .split_at(best_boundary(window, size.characters / 2))
                .0
        };
        let length = text.chars().count();
        // White space has no words to search for.
        if !text.trim().is_empty() {
            if chunks.len() == MAX_CHUNKS {
                return Err(TooManyChunks);
            }
            chunks.push(Chunk {
                text: text.to_owned(),
                start: at,
                end: at + length,
                heading: section.heading.clone(),
            });
        }
        if is_last {
            return Ok(at + length);
        }
        // The next chunk repeats the end of this one, so that a passage across the cut is found.
        let shared = overlap_of(text, size.overlap);
        let step = text.len() - shared.len();
        at += length - shared.chars().count();
        rest = rest.split_at(step).1;
    }
}

fn first_characters(text: &str, max: usize) -> &str {
    match text.char_indices().nth(max) {
        Some((end, _)) => text.split_at(end).0,
        None => text,
    }
}

/// Returns the byte offset of the best boundary after the first `least` characters. The order of preference is
/// the last paragraph, sentence or line, word, and the end of the text.
fn best_boundary(text: &str, least: usize) -> usize {
    // A boundary in the first half would make chunks much smaller than requested.
    let head = first_characters(text, least.max(1)).len();
    let tail = text.split_at(head).1;
    // Paragraphs win over any later sentence.
    if let Some(paragraph) = tail.rfind("\n\n") {
        return head + paragraph + 2;
    }
    let ends = boundaries(text).filter(|(at, _)| *at > head);
    let mut best = (text.len(), Boundary::None);
    for (at, boundary) in ends {
        // `>=` takes the last boundary of the best kind.
        if boundary >= best.1 {
            best = (at, boundary);
        }
    }
    best.0
}

/// Returns the end of a text that the next chunk repeats: at most `max` characters, starting at a boundary.
fn overlap_of(text: &str, max: usize) -> &str {
    let length = text.chars().count();
    // Each chunk has at least one new character.
    let skipped = length.saturating_sub(max).max(1);
    let from = first_characters(text, skipped).len();
    let mut best = (from, Boundary::None);
    let begins_well = |at: usize| !text.split_at(at).1.starts_with(char::is_whitespace);
    for (at, boundary) in boundaries(text).filter(|(at, _)| *at >= from && begins_well(*at)) {
        // `>` takes the first boundary of the best kind: the longest overlap.
        if boundary > best.1 {
            best = (at, boundary);
        }
    }
    let shared = text.split_at(best.0).1;
    // An overlap of white space carries no context.
    if shared.trim().is_empty() { "" } else { shared }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Boundary {
    None,
    Word,
    Sentence,
}

/// Returns the boundaries of a text as byte offsets.
fn boundaries(text: &str) -> impl Iterator<Item = (usize, Boundary)> {
    let before = text.chars();
    let after = text.char_indices().skip(1);
    before.zip(after).map(|(before, (at, after))| {
        let is_blank = after.is_whitespace();
        let boundary = match before {
            // CJK sentences end without a space.
            '\n' | '。' | '！' | '？' | '｡' | '．' if !is_blank => Boundary::Sentence,
            // Western sentences need one: the stop in `3.5` is no boundary.
            '.' | '!' | '?' | ';' | '…' if is_blank => Boundary::Sentence,
            '、' | '，' | '；' | '：' => Boundary::Word,
            before if before.is_whitespace() && !is_blank => Boundary::Word,
            _ => Boundary::None,
        };
        (at, boundary)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: ChunkSize = ChunkSize {
        characters: 40,
        overlap: 10,
    };

    fn texts(text: &str, headings: &[Heading]) -> Vec<String> {
        let chunks = chunk(text, headings, SIZE).unwrap();
        chunks.into_iter().map(|chunk| chunk.text).collect()
    }

    fn heading(text: &str, title: &str, level: u8) -> Heading {
        Heading {
            at: text.find(&format!("# {title}")).unwrap() - usize::from(level) + 1,
            level,
            title: title.to_owned(),
        }
    }

    #[test]
    fn cuts_text_at_natural_boundaries() {
        assert_eq!(texts("short", &[]), ["short"]);
        assert_eq!(texts(" \n ", &[]), Vec::<String>::new());
        let text = "A paragraph of two lines,\nlike this.\n\nAnd then another paragraph.";
        assert_eq!(
            texts(text, &[]),
            [
                "A paragraph of two lines,\nlike this.\n\n",
                "this.\n\nAnd then another paragraph."
            ]
        );
        let text = "Die Katze schläft. Der Hund bellt. Niemand hört ihn heute Nacht.";
        let cut = texts(text, &[]);
        assert_eq!(cut[0], "Die Katze schläft. Der Hund bellt.");
        let text = "今日は天気がいいです。明日は雨が降るでしょう。傘を持って行ってください。気をつけて帰ってください。";
        let cut = texts(text, &[]);
        assert!(cut[0].ends_with('。'), "{cut:?}");
        assert!(cut.len() > 1);
    }

    #[test]
    fn chunks_keep_their_heading_path() {
        let text =
            "intro\n\n# Guide\n\n## Install\n\nRun it.\n\n## Use\n\nAsk it.\n\n# End\n\nBye.\n";
        let headings = [
            heading(text, "Guide", 1),
            heading(text, "Install", 2),
            heading(text, "Use", 2),
            heading(text, "End", 1),
        ];
        let chunks = chunk(text, &headings, SIZE).unwrap();
        let contents: Vec<_> = chunks
            .iter()
            .map(|chunk| (chunk.heading.as_deref(), chunk.text.as_str()))
            .collect();
        assert_eq!(
            contents,
            [
                (None, "intro\n\n"),
                (
                    Some("Guide > Install"),
                    "# Guide\n\n## Install\n\nRun it.\n\n"
                ),
                (Some("Guide > Use"), "## Use\n\nAsk it.\n\n"),
                (Some("End"), "# End\n\nBye.\n"),
            ]
        );
        let (joined, headings) = join(chunks.clone());
        assert_eq!(joined, text);
        let again = chunk(&joined, &headings, SIZE).unwrap();
        let headings: Vec<_> = again.iter().map(|chunk| chunk.heading.as_deref()).collect();
        let contents: Vec<_> = contents.iter().map(|(heading, _)| *heading).collect();
        assert_eq!(headings, contents);
    }

    #[test]
    fn rejects_text_with_too_many_chunks() {
        let size = ChunkSize {
            characters: 2,
            overlap: 0,
        };
        let full = "ab".repeat(MAX_CHUNKS);
        assert_eq!(chunk(&full, &[], size).unwrap().len(), MAX_CHUNKS);
        assert_eq!(chunk(&(full + "c"), &[], size), Err(TooManyChunks));
    }

    proptest! {
        #[test]
        fn chunks_cover_text_with_correct_offsets(
            text in "([a-c]{1,9}[ .]|\n\n|\n|[天气今日。，]{1,6}|é|\u{1f600}){0,120}",
            cuts in prop::collection::vec((0_usize..400, 1_u8..4), 0..5),
            characters in 1_usize..60,
            share in 0_usize..=100,
        ) {
            let size = ChunkSize { characters, overlap: characters / 2 * share / 100 };
            let mut ats: Vec<_> = cuts.iter().map(|(at, level)| (*at, *level)).collect();
            ats.sort_unstable();
            let headings: Vec<_> = ats
                .into_iter()
                .filter(|(at, _)| text.is_char_boundary(*at) && *at <= text.len())
                .map(|(at, level)| Heading { at, level, title: format!("t{at}") })
                .collect();
            let chunks = chunk(&text, &headings, size).unwrap();
            let letters: Vec<char> = text.chars().collect();
            let mut covered = vec![false; letters.len()];
            let mut before = None;
            for chunk in &chunks {
                let slice: String = letters[chunk.start..chunk.end].iter().collect();
                prop_assert_eq!(&slice, &chunk.text);
                prop_assert!(chunk.end - chunk.start <= characters);
                prop_assert!(before < Some((chunk.start, chunk.end)));
                before = Some((chunk.start, chunk.end));
                covered[chunk.start..chunk.end].fill(true);
            }
            for (at, letter) in letters.iter().enumerate() {
                prop_assert!(covered[at] || letter.is_whitespace(), "{at}");
            }
            for pair in chunks.windows(2) {
                prop_assert!(pair[0].end.saturating_sub(pair[1].start) <= size.overlap);
            }
            let (joined, _) = join(chunks);
            let blank = |text: &str| text.chars().map(|c| if c.is_whitespace() { '\n' } else { c }).collect::<String>();
            prop_assert_eq!(blank(joined.trim()), blank(text.trim()));
        }
    }
}
