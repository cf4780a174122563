//! The consecutive questions of one stop, and the answers that resume the platform.

use protocol::interaction::{InteractionRequest, InteractionSubmission};
use serde_json::{Value, json};

use crate::mapping::{MappingStep, PersonAnswer};
use crate::run::ConnectorRun;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped};

/// The open questions, for the case that the run ends before their answers.
const PENDING: &str = "external.pending_interrupts";
/// Maximum bytes of the questions in the state.
const MAX_PENDING: usize = 32 * 1024;

/// The platform's form of questions and answers. Both get the interrupt as it is stored.
#[derive(Clone, Copy)]
pub struct InterruptForm {
    /// The question of that number; numbers make its id unique within a run.
    pub question: fn(&Value, u32) -> InteractionRequest,
    /// The value with which the platform resumes.
    pub resume: fn(&Value, &PersonAnswer) -> Value,
}

/// The questions of one run.
pub struct QuestionQueue {
    form: InterruptForm,
    open: Vec<Value>,
    answers: Vec<Value>,
    count: u32,
}

impl QuestionQueue {
    /// A queue without questions.
    pub fn new(form: InterruptForm) -> Self {
        Self {
            form,
            open: Vec::new(),
            answers: Vec::new(),
            count: 0,
        }
    }

    /// Asks the interrupts of a stop, one after the other.
    pub fn open(&mut self, interrupts: Vec<Value>, run: &mut ConnectorRun) -> MappingStep {
        self.open = interrupts;
        self.ask(run)
    }

    /// Restores the questions of an earlier run. Fails if this is not the answer to the first one.
    pub fn restore(&mut self, answer: &InteractionSubmission, run: &ConnectorRun) -> Mapped {
        let stored = run.turn.state.get(PENDING).cloned().unwrap_or_default();
        let is_current = stored["interaction_id"] == answer.interaction_id.as_str();
        // Without a stored conversation the platform cannot match the answer to its interrupt.
        if !is_current || run.conversation.id().is_none() {
            return Err(ConnectorFailure::question_unknown());
        }
        let list = |name: &str| stored[name].as_array().cloned().unwrap_or_default();
        (self.open, self.answers) = (list("open"), list("answers"));
        Ok(())
    }

    /// Asks the first open question, and stores all for an answer after the end of the run.
    fn ask(&mut self, run: &mut ConnectorRun) -> MappingStep {
        let Some(interrupt) = self.open.first() else {
            return MappingStep::Read;
        };
        self.count += 1;
        let question = (self.form.question)(interrupt, self.count);
        let id = &question.interaction_id;
        let stored = json!({"interaction_id": id, "open": self.open, "answers": self.answers});
        // Questions beyond the limit are answered within this run or not at all.
        let is_small = stored.to_string().len() <= MAX_PENDING;
        let stored = if is_small { stored } else { Value::Null };
        run.answer.out.remember(PENDING, stored);
        MappingStep::Ask(Box::new(question))
    }

    /// Records the answer to the first open question. Asks the next one, or returns all answers.
    pub fn answered(
        &mut self,
        answer: &PersonAnswer,
        run: &mut ConnectorRun,
    ) -> Result<Vec<Value>, MappingStep> {
        if !self.open.is_empty() {
            let interrupt = self.open.remove(0);
            self.answers.push((self.form.resume)(&interrupt, answer));
        }
        if !self.open.is_empty() {
            return Err(self.ask(run));
        }
        forget(run);
        // A resumed run depends on its conversation, so a new one cannot continue it.
        run.confirm();
        Ok(std::mem::take(&mut self.answers))
    }

    /// The failure of a question that no person answered. Its stored form cannot be answered any more.
    pub fn expired(run: &mut ConnectorRun) -> ConnectorFailure {
        forget(run);
        let message = "the agent's question was not answered in time: send the message again";
        ConnectorFailure::new(FailureKind::Timeout, message)
    }
}

/// Removes the stored questions.
fn forget(run: &mut ConnectorRun) {
    run.answer.out.remember(PENDING, Value::Null);
}
