//! Thinking that a model says aloud, taken out of what it says: `<think>…</think>`, however it is cut.

const OPEN: &str = "<think";
const CLOSE: &str = "</think>";

/// Takes thinking out of a text that comes in pieces.
#[derive(Debug, Default)]
pub struct ThinkFilter {
    place: Place,
    /// The end of what has come, where it may be the beginning of a tag.
    held: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Outside,
    /// In the opening tag, which may have attributes.
    Tag,
    Inside,
    /// Thinking is over; the space behind it goes with it.
    Behind,
}

impl ThinkFilter {
    /// Reads one more piece and gives what of it is no thinking.
    pub fn push(&mut self, piece: &str) -> String {
        let text = std::mem::take(&mut self.held) + piece;
        let mut rest = text.as_str();
        let mut said = String::new();
        loop {
            let marker = match self.place {
                Place::Behind => {
                    rest = rest.trim_start();
                    if rest.is_empty() {
                        return said;
                    }
                    self.place = Place::Outside;
                    continue;
                }
                Place::Outside => OPEN,
                Place::Tag => ">",
                Place::Inside => CLOSE,
            };
            let Some(at) = find_marker(rest, marker) else {
                let (before, held) = rest.split_at(rest.len() - partial_marker(rest, marker));
                held.clone_into(&mut self.held);
                if self.place == Place::Outside {
                    said.push_str(before);
                }
                return said;
            };
            if self.place == Place::Outside {
                said.push_str(&rest[..at]);
            }
            rest = &rest[at + marker.len()..];
            self.place = match self.place {
                Place::Tag => Place::Inside,
                Place::Inside => Place::Behind,
                Place::Outside | Place::Behind => Place::Tag,
            };
        }
    }

    /// Nothing more comes: what was held is text, unless it is thinking that never ended.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        if self.place == Place::Outside {
            held
        } else {
            String::new()
        }
    }
}

/// `<think` counts where `>` or space follows: `<thinker>` is text. What follows must have come.
fn find_marker(text: &str, marker: &str) -> Option<usize> {
    let is_tag = |at: &usize| {
        marker != OPEN
            || text[at + OPEN.len()..].starts_with(|next: char| next == '>' || next.is_whitespace())
    };
    text.match_indices(marker).map(|(at, _)| at).find(is_tag)
}

/// How many bytes at the end of `text` may become `marker` (and, for the opening one, what follows it).
fn partial_marker(text: &str, marker: &str) -> usize {
    let longest = marker.len().min(text.len());
    (1..=longest)
        .rev()
        .find(|&length| {
            let is_whole = length == marker.len();
            text.as_bytes().ends_with(&marker.as_bytes()[..length]) && (!is_whole || marker == OPEN)
        })
        .unwrap_or(0)
}

/// A whole text without its thinking.
pub fn without_thinking(text: &str) -> String {
    let mut filter = ThinkFilter::default();
    filter.push(text) + &filter.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn thinking_is_taken_out_and_the_rest_is_kept() {
        for (text, said) in [
            ("plain", "plain"),
            ("<think>a</think>\n\nb", "b"),
            ("a <think x=1>b</think>c", "a c"),
            ("a<think>b</think>c<think>d</think>e", "ace"),
            ("<thinker>a", "<thinker>a"),
            ("a < b <th", "a < b <th"),
            ("a<think>never ends", "a"),
            ("a<think", "a<think"),
            ("</think>a", "</think>a"),
        ] {
            assert_eq!(without_thinking(text), said, "{text}");
        }
    }

    proptest! {
        #[test]
        fn it_does_not_matter_where_it_is_cut(
            parts in prop::collection::vec("(<think>|</think>|<think |<thi|a|>|\n|界)", 0..20),
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
                said += &filter.push(&text[from..at]);
                from = at;
            }
            said += &filter.finish();
            prop_assert_eq!(said, without_thinking(&text));
        }
    }
}
