//! The scripted model: the ideal next output of a task in the form of an arm, from the request only.

mod declare;

use serde_json::{Map, Value, json};

use super::arms::{Arm, OutputForm};
use super::seen::ModelRequest;
use super::tasks::{Arg, ITEMS, StepKind, Task, TaskStep, steps};

/// One output of the model.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PolicyOutput {
    /// Native calls: names and arguments.
    Calls(Vec<(String, Value)>),
    /// Arguments of the carrier.
    Carrier(Value),
    /// Text.
    Text(String),
}

/// The next output; `None` for a request that belongs to no task.
pub(super) fn next(arm: Arm, seen: &ModelRequest) -> Option<PolicyOutput> {
    let (task, turn) = Task::of(&seen.text)?;
    let view = View {
        arm,
        seen,
        steps: steps(task, turn),
    };
    let open: Vec<_> = view
        .steps
        .iter()
        .filter(|step| !view.is_done(step))
        .collect();
    let acts = match (open.is_empty(), arm.form()) {
        (true, _) => None,
        (false, OutputForm::Native) => view.calls(&open).map(PolicyOutput::Calls),
        (false, OutputForm::Carrier | OutputForm::Fenced) => declare::act(&view, task, &open),
    };
    Some(acts.unwrap_or_else(|| answer(arm, view.answer(task, open.is_empty()))))
}

fn answer(arm: Arm, text: String) -> PolicyOutput {
    match arm.form() {
        OutputForm::Carrier => PolicyOutput::Carrier(json!({"kind": "answer", "message": text})),
        OutputForm::Native | OutputForm::Fenced => PolicyOutput::Text(text),
    }
}

/// Steps of the task and their state, as the request shows it.
struct View<'a> {
    arm: Arm,
    seen: &'a ModelRequest,
    steps: Vec<TaskStep>,
}

impl View<'_> {
    fn step(&self, id: &str) -> Option<&TaskStep> {
        self.steps.iter().find(|step| step.id == id)
    }

    /// True when the step's result is present or not needed.
    fn is_done(&self, step: &TaskStep) -> bool {
        let all = step.tokens();
        if all.iter().all(|token| self.seen.token(token).is_some()) {
            return true;
        }
        match step.kind {
            StepKind::Instead(of) => self.step(of).is_some_and(|of| self.has_result(of)),
            _ => self.has_failed(step) && self.alternative(step).is_some(),
        }
    }

    fn has_result(&self, step: &TaskStep) -> bool {
        step.tokens()
            .iter()
            .all(|token| self.seen.token(token).is_some())
    }

    /// The alternative to this step when it fails.
    fn alternative(&self, step: &TaskStep) -> Option<&TaskStep> {
        let is = |other: &&TaskStep| matches!(other.kind, StepKind::Instead(of) if of == step.id);
        self.steps.iter().find(is)
    }

    /// True when a call of this step has failed. In each task only one step can fail.
    fn has_failed(&self, step: &TaskStep) -> bool {
        let native = self
            .seen
            .results
            .iter()
            .any(|result| result.starts_with("Error"));
        let declared = self
            .seen
            .text
            .split(&format!("### Result for {}\n", step.id))
            .nth(1);
        let declared = declared.and_then(|rest| rest.split("### ").next());
        native || declared.is_some_and(|rest| rest.contains("Status: failed"))
    }

    /// True when the step's call was made but its result lacks the expected token.
    fn lacks_expected_token(&self, step: &TaskStep) -> bool {
        let declared = self
            .seen
            .text
            .contains(&format!("### Result for {}\n", step.id));
        let is_only = self.steps.len() == 1;
        is_only && !self.has_result(step) && (declared || !self.seen.results.is_empty())
    }

    /// True when the step may run as soon as its inputs are present.
    fn may_run(&self, step: &TaskStep) -> bool {
        match step.kind {
            StepKind::Instead(of) => self.step(of).is_some_and(|of| self.has_failed(of)),
            _ => true,
        }
    }

    /// The value of an argument; `None` while unknown.
    fn value(&self, arg: &Arg) -> Option<Value> {
        let token_of = |id: &str| self.seen.token(&self.step(id)?.token);
        match arg {
            Arg::Text(text) => Some(json!(text)),
            Arg::Field(of, _) => token_of(of).map(|token| json!(token)),
            Arg::Judged(of) => token_of(of).map(|token| json!(token.replace("clue-", "room-"))),
            Arg::Item => None,
        }
    }

    fn arguments(&self, step: &TaskStep) -> Option<Map<String, Value>> {
        let pair = |(name, arg): &(&str, Arg)| Some(((*name).to_owned(), self.value(arg)?));
        step.args.iter().map(pair).collect()
    }

    /// Arguments of the step's calls that can be made now.
    fn ready(&self, step: &TaskStep) -> Vec<Map<String, Value>> {
        if !self.may_run(step) {
            return Vec::new();
        }
        let StepKind::Each(_) = step.kind else {
            return self.arguments(step).into_iter().collect();
        };
        let open = (1..=ITEMS).filter(|item| {
            let token = format!("{}{item:02}-", step.token);
            self.seen.token(&token).is_none()
        });
        let items = open.filter_map(|item| self.seen.token(&format!("item-{item:02}-")));
        items
            .map(|item| Map::from_iter([("item".to_owned(), json!(item))]))
            .collect()
    }

    /// Native calls of the next turn.
    fn calls(&self, open: &[&TaskStep]) -> Option<Vec<(String, Value)>> {
        let is_over = open.iter().any(|step| self.lacks_expected_token(step));
        let calls = open.iter().flat_map(|step| {
            let calls = self.ready(step).into_iter();
            calls.map(|args| (step.target.to_owned(), Value::Object(args)))
        });
        let max_calls = if self.arm == Arm::Serial {
            1
        } else {
            usize::MAX
        };
        let calls: Vec<_> = calls.take(max_calls).collect();
        (!is_over && !calls.is_empty()).then_some(calls)
    }

    /// The answer: all requested tokens that are known.
    fn answer(&self, task: Task, is_complete: bool) -> String {
        if !is_complete {
            return "What I can see of the results does not hold it.".to_owned();
        }
        if self.steps.is_empty() {
            let first = self.seen.token("code-p1-");
            return first.map_or("I do not know.".to_owned(), |code| format!("It is {code}."));
        }
        let answers = self.steps.iter().filter(|step| step.answers);
        let tokens = answers.flat_map(TaskStep::tokens);
        let mut tokens: Vec<_> = tokens.filter_map(|token| self.seen.token(&token)).collect();
        if task == Task::Children {
            tokens.extend(self.seen.token("finding-2-"));
        }
        format!("The answer: {}.", tokens.join(", "))
    }
}

#[cfg(test)]
mod tests;
