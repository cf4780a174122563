//! Tests two concurrent runs.

use domain::manifest::AcceptedManifest;

use super::check_harness::CheckHarness;
use super::report::{ContractCheck, FindingCollector};

const SEPARATE: ContractCheck = ContractCheck {
    id: "concurrency.separate",
    expected: "two runs at once each get their own results under their own run_id",
    advice: "keep everything about a run in its handler; when you serve one run at a time, answer 503 \
             with Retry-After to the second",
};

pub(super) const ALL: [&ContractCheck; 1] = [&SEPARATE];

/// Sends a different word to each of two concurrent runs.
pub(super) async fn check(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    // Random words: a runner's own text cannot contain them.
    let word = |name: &str| format!("conform-{name}-{}", uuid::Uuid::new_v4().simple());
    let words = [word("one"), word("two")];
    let plans = words.each_ref().map(|word| {
        let text = format!("{} {word}", check_harness.options.text);
        check_harness.message(&text)
    });
    let (one, two) = tokio::join!(
        check_harness.play(runner, &plans[0]),
        check_harness.play(runner, &plans[1])
    );
    // A run may lack its own word, since the runner need not repeat it. The other's word proves a mix-up.
    for (recording, other) in [(&one, &words[1]), (&two, &words[0])] {
        if recording.run_text.contains(other) {
            book.fail(&SEPARATE, "a run was answered with the words of the other");
            return;
        }
    }
    match [&one, &two]
        .into_iter()
        .find(|recording| !recording.is_valid())
    {
        None => book.pass(&SEPARATE, "both ended as they should"),
        Some(recording) if recording.asks_to_wait().is_some() => {
            book.skip(
                &SEPARATE,
                "the runner takes one run at a time, and sends Retry-After",
            );
        }
        Some(recording) => book.fail(&SEPARATE, recording.in_words()),
    }
}
