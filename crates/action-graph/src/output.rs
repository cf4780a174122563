//! Model outputs as a service passes them in, and their classification.

use serde_json::Value;

use crate::code::Code;
use crate::declaration::CARRIER;
use crate::fence;
use crate::textual::{self, TextCall};

/// End of the model's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It ended by itself.
    Stop,
    ToolCalls,
    /// It was cut off: length, content filter or a broken stream.
    Cut,
}

/// A native call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeCall {
    /// The name that the model used.
    pub name: String,
    /// Its arguments, as text.
    pub arguments: String,
}

/// A complete model output. Private reasoning is not part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelOutput {
    /// All visible text.
    pub text: String,
    /// All native calls, in order.
    pub calls: Vec<NativeCall>,
    /// End of the stream.
    pub finish: Finish,
}

impl ModelOutput {
    /// An output of text only.
    pub fn text(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            calls: Vec::new(),
            finish: Finish::Stop,
        }
    }

    /// An output of one call of the carrier.
    pub fn carrier(arguments: impl Into<String>) -> Self {
        Self::call(CARRIER, arguments)
    }

    /// An output of one native call.
    pub fn call(name: &str, arguments: impl Into<String>) -> Self {
        Self {
            text: String::new(),
            calls: vec![NativeCall {
                name: name.to_owned(),
                arguments: arguments.into(),
            }],
            finish: Finish::ToolCalls,
        }
    }

    /// The output as one text, for storage and hashes.
    pub fn raw(&self) -> String {
        let mut raw = self.text.clone();
        for call in &self.calls {
            raw.push_str("\n[call ");
            raw.push_str(&call.name);
            raw.push_str("]\n");
            raw.push_str(&call.arguments);
        }
        raw
    }
}

/// Class of an output, by all of its parts.
#[derive(Clone, Debug, PartialEq)]
pub enum Classified<'a> {
    /// One call of the carrier, with its arguments.
    Carrier(&'a str),
    /// One complete block, with its place.
    Fenced(fence::MarkedBlock<'a>),
    /// Text only.
    Plain(&'a str),
    /// Native calls of other tools.
    Direct(&'a [NativeCall]),
    /// Calls written as text.
    Textual(Vec<TextCall>),
    /// Several declarations, or a damaged one.
    Broken(Code),
    /// The stream was cut off.
    Cut,
    /// No text and no call.
    Empty,
}

/// Judges an output.
pub fn classify(output: &ModelOutput) -> Classified<'_> {
    // First: even complete-looking parts of a cut output may be wrong.
    if output.finish == Finish::Cut {
        return Classified::Cut;
    }
    let is_carrier = |call: &&NativeCall| call.name == CARRIER;
    let carriers: Vec<_> = output.calls.iter().filter(is_carrier).collect();
    let fences = fence::find(&output.text);
    let others = output.calls.len() - carriers.len();
    match (carriers.as_slice(), others, &fences) {
        // Two carrier calls may contradict each other, so neither runs.
        ([_, _, ..], _, _) => Classified::Broken(Code::SeveralCarrierCalls),
        ([_], 1.., _) => Classified::Broken(Code::MixedCarriers),
        // A block next to a carrier call may be a second declaration.
        ([_], 0, fences) if !fences.is_none() => Classified::Broken(Code::MixedCarriers),
        ([call], 0, _) => Classified::Carrier(&call.arguments),
        ([], 1.., fences) if !fences.is_none() => Classified::Broken(Code::MixedCarriers),
        ([], 1.., _) => Classified::Direct(&output.calls),
        ([], 0, _) => text_alone(&output.text, fences),
    }
}

fn text_alone<'a>(text: &'a str, fences: fence::FencedBlocks<'a>) -> Classified<'a> {
    match fences {
        fence::FencedBlocks::Several => Classified::Broken(Code::SeveralDeclarations),
        fence::FencedBlocks::Unclosed => Classified::Broken(Code::UnclosedFence),
        fence::FencedBlocks::One(block) => Classified::Fenced(block),
        fence::FencedBlocks::None if text.trim().is_empty() => Classified::Empty,
        fence::FencedBlocks::None => {
            let calls = textual::find(text);
            // Last: text calls are recovered only where no declared form is present.
            if !calls.is_empty() {
                Classified::Textual(calls)
            } else if is_loose_declaration(text) {
                Classified::Broken(Code::NoDeclaration)
            } else {
                Classified::Plain(text)
            }
        }
    }
}

/// True if the complete text is the JSON of a declaration, sent in place of an answer.
fn is_loose_declaration(text: &str) -> bool {
    let body = fence::unwrap(text);
    let Ok(Value::Object(object)) = serde_json::from_str::<Value>(body) else {
        return false;
    };
    object.contains_key("calls")
        || object.get("kind").is_some_and(|kind| kind == "act")
        || object
            .get("type")
            .is_some_and(|kind| kind == "agent.protocol")
}
