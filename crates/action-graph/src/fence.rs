//! Fenced blocks: finds the one marked `json agent-protocol`, outside of other fences.

/// A complete marked block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkedBlock<'a> {
    pub body: &'a str,
    pub before: &'a str,
    pub after: &'a str,
}

/// Marked blocks of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FencedBlocks<'a> {
    None,
    /// One, complete.
    One(MarkedBlock<'a>),
    /// The only one has no end.
    Unclosed,
    /// More than one.
    Several,
}

impl FencedBlocks<'_> {
    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

/// A line that opens or closes a fence.
#[derive(Clone, Copy)]
struct Mark<'a> {
    letter: char,
    length: usize,
    info: &'a str,
}

/// A fence at column 3 at most, with at least three marks.
fn mark(line: &str) -> Option<Mark<'_>> {
    // CommonMark: four blanks begin an indented code block, which opens no fence.
    let inner = line.trim_start_matches(' ');
    let letter = inner.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let rest = inner.trim_start_matches(letter);
    let length = inner.len() - rest.len();
    let info = rest.trim();
    // Back-ticks in the info string mean inline code.
    let is_inline = letter == '`' && info.contains('`');
    (line.len() - inner.len() <= 3 && length >= 3 && !is_inline).then_some(Mark {
        letter,
        length,
        info,
    })
}

fn closes(line: &str, open: Mark<'_>) -> bool {
    // A closing fence is at least as long as the opening one, and has no info string.
    mark(line).is_some_and(|mark| {
        mark.letter == open.letter && mark.length >= open.length && mark.info.is_empty()
    })
}

fn is_marked(info: &str) -> bool {
    let has = |word| info.split_whitespace().any(|one| one == word);
    has("json") && has("agent-protocol")
}

/// Lines of a text with the offset of each; `inside` is true while a fence is open.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (usize, &str, bool)> {
    let mut open: Option<Mark<'_>> = None;
    let mut at = 0;
    text.split_inclusive('\n').map(move |line| {
        let begin = at;
        at += line.len();
        let bare = line.trim_end_matches(['\n', '\r']);
        if let Some(mark) = open {
            if closes(bare, mark) {
                open = None;
            }
            (begin, line, true)
        } else {
            open = mark(bare);
            // The opening line itself counts as inside.
            (begin, line, open.is_some())
        }
    })
}

/// Finds the marked blocks of a text.
pub fn find(text: &str) -> FencedBlocks<'_> {
    let mut open: Option<(Mark<'_>, usize, usize)> = None;
    let mut found = FencedBlocks::None;
    let mut at = 0;
    // Line by line: a marked block inside another fence is an example, not a declaration.
    for line in text.split_inclusive('\n') {
        let begin = at;
        at += line.len();
        let bare = line.trim_end_matches(['\n', '\r']);
        match open {
            None => open = mark(bare).map(|mark| (mark, begin, at)),
            Some((mark, before, body)) if closes(bare, mark) => {
                open = None;
                if !is_marked(mark.info) {
                    continue;
                }
                if !found.is_none() {
                    return FencedBlocks::Several;
                }
                found = FencedBlocks::One(MarkedBlock {
                    body: &text[body..begin],
                    before: &text[..before],
                    after: &text[at..],
                });
            }
            Some(_) => {}
        }
    }
    match (open, found) {
        (Some((mark, ..)), FencedBlocks::None) if is_marked(mark.info) => FencedBlocks::Unclosed,
        // A complete block and an open one: the open one may be a second declaration.
        (Some((mark, ..)), _) if is_marked(mark.info) => FencedBlocks::Several,
        (_, found) => found,
    }
}

/// The inside of a text that is one fenced block; otherwise the text, trimmed.
pub fn unwrap(text: &str) -> &str {
    let text = text.trim();
    let Some((first, rest)) = text.split_once('\n') else {
        return text;
    };
    let Some(open) = mark(first.trim_end()) else {
        return text;
    };
    // The last line must close the fence, or text after the block would be lost.
    match rest.rsplit_once('\n') {
        Some((body, last)) if closes(last, open) => body.trim(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_one_complete_marked_block() {
        let text = "hi\n```json agent-protocol\n{}\n```\n## a\nb";
        let FencedBlocks::One(block) = find(text) else {
            panic!("one block")
        };
        assert_eq!(
            (block.before, block.body, block.after),
            ("hi\n", "{}\n", "## a\nb")
        );
    }

    #[test]
    fn reports_ignored_blocks() {
        let one = "```json agent-protocol\n{}\n```\n";
        for (text, expected) in [
            ("```json\n{}\n```".to_owned(), FencedBlocks::None),
            (format!("````md\n{one}````\n"), FencedBlocks::None),
            (format!("{one}{one}"), FencedBlocks::Several),
            (
                "```json agent-protocol\n{}".to_owned(),
                FencedBlocks::Unclosed,
            ),
            (
                "    ```json agent-protocol\n{}\n    ```".to_owned(),
                FencedBlocks::None,
            ),
            (
                format!("{one}```json agent-protocol\n"),
                FencedBlocks::Several,
            ),
        ] {
            assert_eq!(find(&text), expected, "{text}");
        }
    }
}
