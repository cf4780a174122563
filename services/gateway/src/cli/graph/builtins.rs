//! Built-in functions of the runtime in a scripted run.

use action_graph::code::Code;
use action_graph::node::{ActionOutput, Sent};
use action_graph::schedule::{ActionFailure, ActionOutcome};
use action_graph::words::{merge, summarize};
use serde_json::{Value, json};

/// Result of a function.
pub(super) enum Reply {
    /// Completed at once.
    Done(ActionOutcome),
    /// Completed after this number of milliseconds.
    Wait(u64),
}

impl Reply {
    /// Result of a wait.
    pub(super) fn waited() -> ActionOutcome {
        done(ActionOutput::json(json!({"waited": true})))
    }
}

/// Runs a function with bound arguments. `expand` and `decide` fail, since there are no earlier graphs.
pub(super) fn run_builtin(word: &str, input: &Value) -> Reply {
    let values = || -> Vec<Value> {
        let refs = input.get("refs").and_then(Value::as_array);
        refs.cloned().unwrap_or_default()
    };
    match word {
        "wait" => Reply::Wait(input.get("ms").and_then(Value::as_u64).unwrap_or_default()),
        "merge" => Reply::Done(done(merge(&values()))),
        "summarize" => Reply::Done(done(summarize(&values()))),
        "checkpoint" => Reply::Done(done(ActionOutput::json(json!({"stored": false})))),
        _ => {
            let message = format!("`{word}` needs an earlier graph of the conversation");
            let failure = ActionFailure::new(Code::Unavailable, &message, Sent::No);
            Reply::Done(ActionOutcome::Err(failure))
        }
    }
}

fn done(output: ActionOutput) -> ActionOutcome {
    let satisfying = true;
    ActionOutcome::Ok { output, satisfying }
}
