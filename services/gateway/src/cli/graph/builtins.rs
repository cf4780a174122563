//! Built-in functions of the runtime in a scripted run.

use action_graph::code::Code;
use action_graph::node::{Output, Sent};
use action_graph::schedule::{Failure, Outcome};
use action_graph::words::{merge, summarize};
use serde_json::{Value, json};

/// Result of a function.
pub(super) enum Reply {
    /// Completed.
    Done(Outcome),
    /// Completed after this number of milliseconds.
    Wait(u64),
}

impl Reply {
    /// Result of a wait.
    pub(super) fn waited() -> Outcome {
        done(Output::json(json!({"waited": true})))
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
        "checkpoint" => Reply::Done(done(Output::json(json!({"stored": false})))),
        _ => {
            let message = format!("`{word}` needs an earlier graph of the conversation");
            let failure = Failure::new(Code::Unavailable, &message, Sent::No);
            Reply::Done(Outcome::Err(failure))
        }
    }
}

fn done(output: Output) -> Outcome {
    let satisfying = true;
    Outcome::Ok { output, satisfying }
}
