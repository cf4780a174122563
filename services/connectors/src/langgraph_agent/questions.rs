//! The consecutive questions of one stop, and their answers as one value.

use protocol::JsonObject;
use protocol::interaction::InteractionSubmission;
use serde_json::{Value, json};

use crate::langgraph_agent::interrupts::{self, Interrupt};
use crate::machine::{MachineOutput, OutputQueue};

/// The open questions, for the case that the run ends before their answers.
const PENDING: &str = "external.pending_interrupts";
/// Maximum bytes of the questions in the state.
const MAX_PENDING: usize = 32 * 1024;

#[derive(Default)]
pub(super) struct LangGraphQuestions {
    open: Vec<Interrupt>,
    answers: Vec<(Option<String>, Value)>,
    /// Number of questions so far. It makes ids unique: interrupts of one task share an id.
    question_count: u32,
}

impl LangGraphQuestions {
    /// The questions of an earlier run, if this is the answer to the first one.
    pub(super) fn restore(state: &JsonObject, answer: &InteractionSubmission) -> Option<Self> {
        let stored = state.get(PENDING)?;
        let is_current = stored["interaction_id"] == answer.interaction_id.as_str();
        is_current.then(|| Self {
            open: interrupts::read(&stored["open"]),
            answers: serde_json::from_value(stored["answers"].clone()).unwrap_or_default(),
            question_count: 0,
        })
    }

    /// Sets the interrupts of a stop.
    pub(super) fn open(&mut self, interrupts: Vec<Interrupt>) {
        self.open = interrupts;
    }

    /// Asks the first open question, and stores all for an answer after the end of the run.
    pub(super) fn ask(&mut self, out: &mut OutputQueue) {
        let Some(interrupt) = self.open.first() else {
            return;
        };
        self.question_count += 1;
        let id = interrupt.id.as_deref().unwrap_or("interrupt");
        let id = format!("langgraph_{id}_{}", self.question_count);
        let open: Vec<_> = self.open.iter().map(Interrupt::stored).collect();
        let stored = json!({"interaction_id": id, "open": open, "answers": self.answers});
        let is_small = stored.to_string().len() <= MAX_PENDING;
        // Questions beyond the limit are answered within this run or not at all.
        out.remember(PENDING, if is_small { stored } else { Value::Null });
        out.push(MachineOutput::Ask(Box::new(interrupt.question(&id))));
    }

    /// Records the answer to the first open question. Asks the next one, or returns the value that resumes the graph.
    pub(super) fn answer(
        &mut self,
        action: Option<&str>,
        values: &JsonObject,
        out: &mut OutputQueue,
    ) -> Option<Value> {
        if !self.open.is_empty() {
            let interrupt = self.open.remove(0);
            let value = interrupt.resume(action, values);
            self.answers.push((interrupt.id, value));
        }
        if !self.open.is_empty() {
            self.ask(out);
            return None;
        }
        Self::forget(out);
        let mut answers = std::mem::take(&mut self.answers);
        // Servers accept a single value without an id, and older ones send no ids.
        if answers.len() < 2 {
            return Some(answers.pop().map(|(_, value)| value).unwrap_or_default());
        }
        let named = answers.into_iter();
        let named = named.filter_map(|(id, value)| Some((id?, value)));
        Some(Value::Object(named.collect()))
    }

    /// Removes the stored questions.
    pub(super) fn forget(out: &mut OutputQueue) {
        out.remember(PENDING, Value::Null);
    }
}
