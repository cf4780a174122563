//! Tests two concurrent runs.

use domain::manifest::AcceptedManifest;

use super::kit::Kit;
use super::report::{Book, Check};

const SEPARATE: Check = Check {
    id: "concurrency.separate",
    expected: "two runs at once each get their own results under their own run_id",
    advice: "keep everything about a run in its handler; when you serve one run at a time, answer 503 \
             with Retry-After to the second",
};

pub(super) const ALL: [&Check; 1] = [&SEPARATE];

/// Sends a different word to each of two concurrent runs.
pub(super) async fn check(kit: &Kit, runner: &AcceptedManifest, book: &mut Book<'_>) {
    let word = |name: &str| format!("conform-{name}-{}", uuid::Uuid::new_v4().simple());
    let words = [word("one"), word("two")];
    let plans = words.each_ref().map(|word| {
        let text = format!("{} {word}", kit.options.text);
        kit.message(&text)
    });
    let (one, two) = tokio::join!(kit.play(runner, &plans[0]), kit.play(runner, &plans[1]));
    for (trace, other) in [(&one, &words[1]), (&two, &words[0])] {
        if trace.speech.says(other) {
            book.fail(&SEPARATE, "a run was answered with the words of the other");
            return;
        }
    }
    match [&one, &two].into_iter().find(|trace| !trace.is_sound()) {
        None => book.pass(&SEPARATE, "both ended as they should"),
        Some(trace) if trace.asks_to_wait().is_some() => {
            book.skip(
                &SEPARATE,
                "the runner takes one run at a time, and says when to come back",
            );
        }
        Some(trace) => book.fail(&SEPARATE, trace.in_words()),
    }
}
