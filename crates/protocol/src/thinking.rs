//! Filter for reasoning in a model's text: `<think>…</think>` and similar marks, in any case and at any chunk
//! boundary.

/// Reasoning marks of one model family.
struct ReasoningMarks {
    open: &'static str,
    close: &'static str,
    /// True if `open` starts a tag that ends with `>` and may have attributes.
    is_tag: bool,
}

const MARKS: [ReasoningMarks; 9] = [
    ReasoningMarks {
        open: "<think",
        close: "</think>",
        is_tag: true,
    },
    ReasoningMarks {
        open: "<thinking",
        close: "</thinking>",
        is_tag: true,
    },
    ReasoningMarks {
        open: "<thought",
        close: "</thought>",
        is_tag: true,
    },
    ReasoningMarks {
        open: "<thoughts",
        close: "</thoughts>",
        is_tag: true,
    },
    ReasoningMarks {
        open: "<reasoning",
        close: "</reasoning>",
        is_tag: true,
    },
    ReasoningMarks {
        open: "<|START_THINKING|>",
        close: "<|END_THINKING|>",
        is_tag: false,
    },
    ReasoningMarks {
        open: "<seed:think",
        close: "</seed:think>",
        is_tag: true,
    },
    ReasoningMarks {
        open: "[THINK]",
        close: "[/THINK]",
        is_tag: false,
    },
    ReasoningMarks {
        open: "◁think▷",
        close: "◁/think▷",
        is_tag: false,
    },
];

/// Removes reasoning from a text that arrives in pieces.
///
/// A closing mark without an opening mark turns all text before it into reasoning: some chat templates write the
/// opening mark themselves. A mark directly after a backtick is text.
#[derive(Debug, Default)]
pub struct ThinkFilter {
    state: FilterState,
    /// Buffered end of the text that may be the start of a mark.
    held: String,
    /// True if a backtick precedes `held`.
    is_quoted: bool,
}

/// Text and reasoning that one piece adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilteredText {
    pub text: String,
    /// Reasoning that the piece adds. Excludes text that a later closing mark turns into reasoning.
    pub reasoning: String,
    /// True if all earlier text was reasoning: `text` is then the complete text so far.
    pub starts_over: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FilterState {
    #[default]
    Outside,
    /// Inside the opening tag of these marks.
    Tag(usize),
    Inside(usize),
    /// After reasoning: white space is dropped.
    AfterReasoning,
}

/// Result of the search for the next mark.
enum MarkSearch {
    /// A mark from `at` to `end`; the text after it is in `state`.
    Mark {
        at: usize,
        end: usize,
        state: FilterState,
    },
    /// A possible start of a mark at this offset.
    Incomplete(usize),
    Nothing,
}

impl ThinkFilter {
    /// Reads one piece and returns its text and reasoning.
    pub fn push(&mut self, piece: &str) -> FilteredText {
        // The buffered end of the last piece may be the start of a mark.
        let text = std::mem::take(&mut self.held) + piece;
        let mut rest = text.as_str();
        let mut output = FilteredText::default();
        loop {
            if self.state == FilterState::AfterReasoning {
                rest = rest.trim_start();
                // White space after reasoning belongs to neither; the text starts with its first visible character.
                if rest.is_empty() {
                    return output;
                }
                self.state = FilterState::Outside;
            }
            let (before, next) = match find(rest, self.state, self.is_quoted) {
                MarkSearch::Mark { at, end, state } => (at, Some((end, state))),
                MarkSearch::Incomplete(at) => (at, None),
                MarkSearch::Nothing => (rest.len(), None),
            };
            if self.state == FilterState::Outside {
                output.text.push_str(&rest[..before]);
                // Text inside of a tag or of reasoning is not visible.
                if let Some(last) = rest[..before].chars().next_back() {
                    self.is_quoted = last == '`';
                    // The next mark may be at the start of the next piece, after a backtick in this one.
                }
            } else if matches!(self.state, FilterState::Inside(_)) {
                output.reasoning.push_str(&rest[..before]);
            }
            let Some((end, state)) = next else {
                // Undecided text waits for the next piece, or for the end.
                rest[before..].clone_into(&mut self.held);
                return output;
            };
            // A closing mark without its opening mark: the chat template wrote that one.
            if self.state == FilterState::Outside && state == FilterState::AfterReasoning {
                // The caller has shown this text already, so it must start over.
                output.reasoning.push_str(&std::mem::take(&mut output.text));
                output.starts_over = true;
            }
            // A mark separates the next text from an earlier backtick.
            self.is_quoted = false;
            self.state = state;
            rest = &rest[end..];
        }
    }

    /// Ends the text and returns the buffered rest. The rest of unclosed reasoning is dropped.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        // Outside of reasoning, an incomplete mark is plain text. Inside, the rest is reasoning, which the caller does
        // not want.
        if self.state == FilterState::Outside {
            held
        } else {
            String::new()
        }
    }
}

/// Classification of the start of a text.
enum MarkMatch {
    /// A mark of this length, and the state after it.
    Mark(usize, FilterState),
    /// The text is too short to decide.
    Incomplete,
    Other,
}

/// Finds the first mark in `text` that is valid in this state.
fn find(text: &str, state: FilterState, is_quoted: bool) -> MarkSearch {
    let mut is_quoted = is_quoted;
    for (at, letter) in text.char_indices() {
        let rest = &text[at..];
        let found = match state {
            // Attributes of an opening tag are ignored up to `>`.
            FilterState::Tag(marks) if letter == '>' => {
                MarkMatch::Mark(1, FilterState::Inside(marks))
            }
            FilterState::Tag(_) => MarkMatch::Other,
            // Only the closing mark of the same family ends the reasoning: models mention others in it.
            FilterState::Inside(marks) => closing(rest, marks),
            // Documentation of such marks is written in backticks.
            FilterState::Outside | FilterState::AfterReasoning if is_quoted => MarkMatch::Other,
            FilterState::Outside | FilterState::AfterReasoning => any_mark(rest),
        };
        match found {
            MarkMatch::Mark(length, state) => {
                let end = at + length;
                return MarkSearch::Mark { at, end, state };
            }
            // Later letters cannot decide earlier ones, so the search stops here.
            MarkMatch::Incomplete => return MarkSearch::Incomplete(at),
            MarkMatch::Other => is_quoted = letter == '`',
        }
    }
    MarkSearch::Nothing
}

fn any_mark(text: &str) -> MarkMatch {
    // Most letters start no mark; this spares nine comparisons for each.
    if !text.starts_with(['<', '[', '◁']) {
        return MarkMatch::Other;
    }
    let mut found = MarkMatch::Other;
    for marks in 0..MARKS.len() {
        for begins in [opening(text, marks), closing(text, marks)] {
            match begins {
                // A complete mark wins over a longer one that is still possible.
                MarkMatch::Mark(..) => return begins,
                MarkMatch::Incomplete => found = MarkMatch::Incomplete,
                MarkMatch::Other => {}
            }
        }
    }
    found
}

fn closing(text: &str, marks: usize) -> MarkMatch {
    let mark = MARKS[marks].close;
    // A prefix of the mark is enough here; the length decides next.
    if !is_alike(text, mark) {
        MarkMatch::Other
    } else if text.len() < mark.len() {
        MarkMatch::Incomplete
    } else {
        MarkMatch::Mark(mark.len(), FilterState::AfterReasoning)
    }
}

/// `<think` is a mark only before `>` or white space: `<thinker>` is text.
fn opening(text: &str, marks: usize) -> MarkMatch {
    let ReasoningMarks { open, is_tag, .. } = MARKS[marks];
    if !is_alike(text, open) {
        return MarkMatch::Other;
    }
    if text.len() < open.len() {
        return MarkMatch::Incomplete;
    }
    if !is_tag {
        return MarkMatch::Mark(open.len(), FilterState::Inside(marks));
    }
    match text[open.len()..].chars().next() {
        // The tag may continue in the next piece.
        None => MarkMatch::Incomplete,
        Some('>') => MarkMatch::Mark(open.len() + 1, FilterState::Inside(marks)),
        // Attributes may follow; the tag ends at `>`.
        Some(letter) if letter.is_whitespace() => {
            MarkMatch::Mark(open.len(), FilterState::Tag(marks))
        }
        Some(_) => MarkMatch::Other,
    }
}

/// Returns true if one of `text` and `mark` is a prefix of the other, ignoring ASCII case.
fn is_alike(text: &str, mark: &str) -> bool {
    let length = text.len().min(mark.len());
    // Bytes, since a cut within a character of `◁think▷` would panic.
    let (text, mark) = (&text.as_bytes()[..length], &mark.as_bytes()[..length]);
    text.eq_ignore_ascii_case(mark)
}

/// Removes reasoning from a complete text.
pub fn without_thinking(text: &str) -> String {
    let mut filter = ThinkFilter::default();
    // The end of the text decides about a buffered start of a mark.
    filter.push(text).text + &filter.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn removes_reasoning_and_keeps_text() {
        for (text, expected) in [
            ("plain", "plain"),
            ("<think>a</think>\n\nb", "b"),
            ("a <think x=1>b</think>c", "a c"),
            ("a<think>b</think>c<think>d</think>e", "ace"),
            ("<thinker>a", "<thinker>a"),
            ("a < b <th", "a < b <th"),
            ("a<think>never ends", "a"),
            ("a<think", "a<think"),
            ("<thinking>a</thinking>b", "b"),
            ("[THINK]a[/THINK] b", "b"),
            ("◁think▷a◁/think▷b", "b"),
            ("<THINK>a</Think>b", "b"),
            ("<thinking>a</think>b</thinking>c", "c"),
            ("<seed:think>a</seed:think>b", "b"),
            ("<thought>a</thought>\n\nb", "b"),
            ("<Thought>a</thought>b", "b"),
            ("<thoughts>a</thoughts>b", "b"),
            ("<thoughtful>a", "<thoughtful>a"),
            ("<reasoning effort='high'>a</reasoning>b", "b"),
            ("<|START_THINKING|>a<|END_THINKING|>b", "b"),
            ("[think]a[/think]b", "b"),
            ("[a](b) [THIN", "[a](b) [THIN"),
        ] {
            assert_eq!(without_thinking(text), expected, "{text}");
        }
    }

    #[test]
    fn returns_reasoning_separately() {
        let mut filter = ThinkFilter::default();
        let (mut text, mut reasoning) = (String::new(), String::new());
        for piece in ["<think>a", "b</thi", "nk>c", "<thinking>d</thinking>"] {
            let filtered = filter.push(piece);
            text += &filtered.text;
            reasoning += &filtered.reasoning;
        }
        assert_eq!((text.as_str(), reasoning.as_str()), ("c", "abd"));
    }

    #[test]
    fn lone_closing_mark_ends_reasoning() {
        for (text, expected) in [
            ("thoughts</think>answer", "answer"),
            ("thoughts\n</THINK>\n\nanswer", "answer"),
            ("</think>a", "a"),
            ("a</thinking>b", "b"),
            ("a[/THINK]b", "b"),
            ("a◁/think▷b", "b"),
            ("<think>a<think>b</think>c</think>d", "d"),
            ("write `</think>` after it", "write `</think>` after it"),
            ("write `<think>` before it", "write `<think>` before it"),
        ] {
            assert_eq!(without_thinking(text), expected, "{text}");
        }
        let mut filter = ThinkFilter::default();
        assert_eq!(filter.push("thoughts</thi").text, "thoughts");
        let over = filter.push("nk> answer");
        assert_eq!((over.text.as_str(), over.starts_over), ("answer", true));
        assert!(!filter.push(" follows").starts_over);
    }

    proptest! {
        #[test]
        fn chunk_boundaries_never_change_result(
            parts in prop::collection::vec(
                "(<think>|</think>|<think |<thi|</THINKING>|<thinking>|<thought>|</thought>|<thoughts>|</reasoning>|<reasoning |\\[THINK\\]|\\[/THINK\\]|◁think▷|◁/think▷|a|>|\n|`|界)",
                0..20
            ),
            cuts in prop::collection::vec(0usize..200, 0..8),
        ) {
            let text = parts.concat();
            let mut places: Vec<_> = cuts
                .into_iter()
                .filter(|at| *at <= text.len() && text.is_char_boundary(*at))
                .collect();
            places.sort_unstable();
            let (mut filter, mut said, mut from) = (ThinkFilter::default(), String::new(), 0);
            for at in places.into_iter().chain([text.len()]) {
                let piece = filter.push(&text[from..at]);
                if piece.starts_over {
                    said.clear();
                }
                said += &piece.text;
                from = at;
            }
            said += &filter.finish();
            prop_assert_eq!(said, without_thinking(&text));
        }
    }
}
