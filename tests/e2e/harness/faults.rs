//! Faulty agents: each fault ends the run with its own code, and no process remains.

use rstest::rstest;

use crate::support::harness::{HarnessFixture, fake};
use crate::support::waiting::until;

#[rstest]
#[case("silent-initialize", "failed harness.start_timeout")]
#[case("silent-new", "failed harness.start_timeout")]
#[case("silent-prompt", "failed harness.timeout")]
#[case("flood-line", "failed harness.protocol_error")]
#[case("flood-stderr", "completed")]
#[case("unknown-method", "completed")]
#[case("late-permission", "completed")]
#[case("exit-3", "failed harness.exited")]
#[case("orphan", "completed")]
#[case("empty", "failed harness.empty_response")]
#[tokio::test]
async fn each_fault_has_a_code_and_no_leftovers(#[case] mode: &str, #[case] ending: &str) {
    let mut setup = fake(mode);
    setup.settings = "[limits]\nstart_seconds = 2";
    setup.config = "timeout = 6";
    let house = HarnessFixture::open(setup).await;
    let ended = house.ask("hello").await;
    assert_eq!(ended.ending(), ending, "{}", ended.run);
    house.wait_for_no_process().await;
}

#[rstest]
#[case("file-alone", "")]
#[case("large-file", "large.bin: it is larger than 16 MiB")]
#[case("refusal-alone", "was not given: refused")]
#[case("model-refusal", "The model refused to answer.")]
#[tokio::test]
async fn files_or_refusals_alone_complete_the_run(#[case] mode: &str, #[case] text: &str) {
    let mut setup = fake(mode);
    setup.config = "mode = \"read-only\"";
    let house = HarnessFixture::open(setup).await;
    let ended = house.ask("hello").await;
    assert_eq!(ended.ending(), "completed", "{}", ended.run);
    assert!(ended.text().contains(text), "{}", ended.text());
    let message = ended.of("message.completed")[0];
    let files = message["file_ids"].as_array().map_or(0, Vec::len);
    assert_eq!(files, usize::from(mode == "file-alone"), "{message}");
}

#[rstest]
#[case("exit-new", "failed harness.exited")]
#[case("deny-new", "failed harness.protocol_error")]
#[tokio::test]
async fn session_start_failures_quote_the_last_line(#[case] mode: &str, #[case] ending: &str) {
    let house = HarnessFixture::open(fake(mode)).await;
    let ended = house.ask("hello").await;
    assert_eq!(ended.ending(), ending, "{}", ended.run);
    let message = ended.run["error"]["message"].as_str().unwrap();
    assert!(message.contains("fatal: no session today"), "{message}");
    house.wait_for_no_process().await;
}

#[tokio::test]
async fn cancel_ends_the_turn_and_its_processes() {
    for mode in ["good", "ignore-cancel"] {
        let house = HarnessFixture::open(fake(mode)).await;
        let run = house.post("sleep").await;
        until("the turn", async || !house.processes().is_empty()).await;
        let cancelled = house
            .client
            .create(&format!("/v1/runs/{run}/cancel"), &serde_json::json!({}))
            .await;
        assert!(cancelled.status < 300, "{}", cancelled.body);
        let ended = house.ended(&run).await;
        assert_eq!(ended.run["status"], "cancelled", "{mode}: {}", ended.run);
        house.wait_for_no_process().await;
    }
}
