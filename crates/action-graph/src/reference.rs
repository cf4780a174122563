//! References: where a value comes from.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::{ActionId, GraphId, is_action_id, is_graph_id, is_section_id};

words! {
    /// A part of an action's result.
    pub enum ResultPart {
        Summary = "summary",
        Output = "output",
        Error = "error",
        Status = "status",
    }
}

impl ResultPart {
    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.as_str() == name)
    }
}

/// A parsed reference. Pointers are RFC 6901, empty for the complete value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reference {
    /// `md:ID`: a Markdown section of the same output.
    Section(String),
    /// `action:ID.part#pointer`: an action of the same graph.
    Action {
        id: ActionId,
        part: ResultPart,
        pointer: String,
    },
    /// `input:user.goal`: the text of the user's request.
    Goal,
    /// `input:event#pointer`: the event that began the run.
    Event(String),
    /// `runtime://runs/RUN/actions/ID/part`: an earlier graph of the conversation.
    Runtime {
        /// The graph, `run_id` in transcripts.
        graph: GraphId,
        /// The action; absent for the graph.
        action: Option<ActionId>,
        part: ResultPart,
        pointer: String,
    },
    /// `runtime://runs/RUN/declaration`: the declaration of a graph as the model wrote it; only for expansion.
    Declaration(GraphId),
    /// `artifact:NAME`: an artifact of the same graph.
    Artifact(String),
    /// `item#pointer`: the current item inside `for_each`.
    Item(String),
    /// `own#pointer`: the action's last output, only in `repeat.until`.
    Own(String),
}

/// Tokens of one JSON pointer.
const POINTER_TOKENS: usize = 16;

/// A text that is no reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no reference")]
pub struct BadReference(pub String);

impl FromStr for Reference {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        // Cut: the text goes into messages.
        parse(text).ok_or_else(|| BadReference(text.chars().take(100).collect()))
    }
}

fn parse(text: &str) -> Option<Reference> {
    if let Some(id) = text.strip_prefix("md:") {
        return is_section_id(id).then(|| Reference::Section(id.to_owned()));
    }
    // `artifact://RUN/ID` is another form, which is handled below.
    if let Some(name) = text
        .strip_prefix("artifact:")
        .filter(|rest| !rest.starts_with("//"))
    {
        let is_name = !name.is_empty() && name.len() <= 128 && !name.chars().any(char::is_control);
        return is_name.then(|| Reference::Artifact(name.to_owned()));
    }
    let (path, pointer) = match text.split_once('#') {
        Some((path, pointer)) => (path, is_pointer(pointer).then_some(pointer)?.to_owned()),
        None => (text, String::new()),
    };
    match path {
        "input:user.goal" if pointer.is_empty() => return Some(Reference::Goal),
        "input:event" => return Some(Reference::Event(pointer)),
        "item" => return Some(Reference::Item(pointer)),
        "own" => return Some(Reference::Own(pointer)),
        _ => {}
    }
    if let Some(path) = path.strip_prefix("action:") {
        let (id, part) = path.rsplit_once('.')?;
        return is_action_id(id).then_some(Reference::Action {
            id: id.into(),
            part: ResultPart::from_name(part)?,
            pointer,
        });
    }
    if let Some(path) = path.strip_prefix("runtime://") {
        // `runs/` may be left out.
        return stored(path.strip_prefix("runs/").unwrap_or(path), pointer);
    }
    let path = path.strip_prefix("artifact://")?;
    let (graph, action) = path.split_once('/')?;
    stored(&format!("{graph}/actions/{action}/output"), pointer)
}

/// `RUN`, `RUN/part`, `RUN/actions/ID` or `RUN/actions/ID/part`.
fn stored(path: &str, pointer: String) -> Option<Reference> {
    let mut tokens = path.split('/');
    let graph = tokens.next().filter(|graph| is_graph_id(graph))?;
    // Without a part a reference means the summary, which is small.
    let (mut action, mut part) = (None, ResultPart::Summary);
    match tokens.next() {
        Some("actions") => {
            action = Some(tokens.next().filter(|id| is_stored_action(id))?.into());
            if let Some(name) = tokens.next() {
                part = ResultPart::from_name(name)?;
            }
        }
        Some("declaration") if pointer.is_empty() && tokens.next().is_none() => {
            return Some(Reference::Declaration(GraphId(graph.to_owned())));
        }
        Some(name) => part = ResultPart::from_name(name)?,
        None => {}
    }
    // Trailing parts are a fault, not ignored: the model meant something else.
    tokens.next().is_none().then(|| Reference::Runtime {
        graph: GraphId(graph.to_owned()),
        action,
        part,
        pointer,
    })
}

/// An action's id, or that of an instance: `name[3]`.
fn is_stored_action(id: &str) -> bool {
    let Some((name, index)) = id.strip_suffix(']').and_then(|id| id.split_once('[')) else {
        return is_action_id(id);
    };
    is_action_id(name) && index.parse::<u16>().is_ok()
}

/// True for an RFC 6901 pointer of at most 16 tokens.
pub fn is_pointer(pointer: &str) -> bool {
    // RFC 6901: `~` occurs only as `~0` and `~1`.
    let escapes_end = || {
        let mut rest = pointer.split('~').skip(1);
        rest.all(|after| after.starts_with(['0', '1']))
    };
    pointer.is_empty()
        || pointer.starts_with('/')
            // Bounded: each token is a step through the value.
            && pointer.matches('/').count() <= POINTER_TOKENS
            && pointer.len() <= 1_024
            && escapes_end()
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = |f: &mut fmt::Formatter<'_>, pointer: &str| match pointer {
            "" => Ok(()),
            pointer => write!(f, "#{pointer}"),
        };
        match self {
            Self::Section(id) => write!(f, "md:{id}"),
            Self::Artifact(name) => write!(f, "artifact:{name}"),
            Self::Declaration(graph) => write!(f, "runtime://runs/{graph}/declaration"),
            Self::Goal => f.write_str("input:user.goal"),
            Self::Event(pointer) => f.write_str("input:event").and_then(|()| hash(f, pointer)),
            Self::Item(pointer) => f.write_str("item").and_then(|()| hash(f, pointer)),
            Self::Own(pointer) => f.write_str("own").and_then(|()| hash(f, pointer)),
            Self::Action { id, part, pointer } => {
                write!(f, "action:{id}.{}", part.as_str())?;
                hash(f, pointer)
            }
            Self::Runtime {
                graph,
                action,
                part,
                pointer,
            } => {
                write!(f, "runtime://runs/{graph}")?;
                if let Some(action) = action {
                    write!(f, "/actions/{action}")?;
                }
                write!(f, "/{}", part.as_str())?;
                hash(f, pointer)
            }
        }
    }
}

impl Serialize for Reference {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_every_kind_of_reference() {
        for (text, printed) in [
            ("md:review.prompt", "md:review.prompt"),
            ("action:find.summary", "action:find.summary"),
            ("action:find.output#/files/0", "action:find.output#/files/0"),
            ("action:find.error", "action:find.error"),
            ("action:find.status", "action:find.status"),
            ("input:user.goal", "input:user.goal"),
            ("input:event#/a~1b", "input:event#/a~1b"),
            ("artifact:report", "artifact:report"),
            ("item", "item"),
            ("item#/name", "item#/name"),
            ("own#/done", "own#/done"),
            (
                "runtime://run_1/actions/a/output",
                "runtime://runs/run_1/actions/a/output",
            ),
            (
                "runtime://runs/run_1/actions/a[3]/output",
                "runtime://runs/run_1/actions/a[3]/output",
            ),
            ("runtime://runs/run_1", "runtime://runs/run_1/summary"),
            (
                "runtime://run_1/declaration",
                "runtime://runs/run_1/declaration",
            ),
            (
                "artifact://run_1/a",
                "runtime://runs/run_1/actions/a/output",
            ),
        ] {
            let parsed: Reference = text.parse().expect(text);
            assert_eq!(parsed.to_string(), printed);
            assert_eq!(printed.parse(), Ok(parsed));
        }
    }

    #[test]
    fn refuses_texts_outside_the_grammar() {
        for text in [
            "runtime://runs/run_1/declaration#/a",
            "runtime://runs/run_1/actions/a/declaration",
            "",
            "md:",
            "md:a b",
            "action:find",
            "action:find.all",
            "action:.output",
            "input:secret",
            "runtime://",
            "runtime://a/b",
            "runtime://a/actions",
            "action:a.output#x",
            "action:a.output#/~2",
            "artifact:",
            "http://a",
            "own#/a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q",
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text}");
        }
    }
}
