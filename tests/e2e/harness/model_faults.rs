//! Failed requests to the model, and tool calls, which the relay sees.

use rstest::rstest;

use crate::support::harness::{HarnessFixture, HarnessSetup, fake};

const SCRIPT: &str = "[[turns]]\nwhen = \"too long\"\nstatus = 400\nmessage = \"the prompt is too long for this model\"\n\
     [[turns]]\nwhen = \"limited\"\nstatus = 429\nretry_after = 39\nmessage = \"slow down\"\n\
     [[turns]]\nanswer = \"A good answer.\"\n";

#[rstest]
#[case(
    "too long model",
    "failed harness.turn_failed",
    "the provider answers 400: "
)]
#[case(
    "limited model",
    "failed harness.turn_failed",
    "the provider answers 429, next try in 39 s: "
)]
#[case("good model", "completed", "")]
#[tokio::test]
async fn provider_error_is_no_answer(
    #[case] prompt: &str,
    #[case] ending: &str,
    #[case] logged: &str,
) {
    let house = HarnessFixture::open(HarnessSetup {
        script: SCRIPT,
        ..fake("good")
    })
    .await;
    let ended = house.ask(prompt).await;
    assert_eq!(ended.ending(), ending, "{}", ended.run);
    assert!(ended.logs().contains(logged), "{}", ended.logs());
}

#[rstest]
#[case("ask", "post", Some("allow_once"), true)]
#[case("ask", "post", Some("reject"), false)]
#[case("ask", "get_current_time", None, true)]
#[case("read-only", "post", None, false)]
#[case("read-only", "unknown", None, false)]
#[case("read-only", "get_current_time", None, true)]
#[case("full", "post", None, true)]
#[tokio::test]
async fn modes_gate_granted_tools(
    #[case] mode: &str,
    #[case] tool: &str,
    #[case] answer: Option<&str>,
    #[case] is_called: bool,
) {
    let url = "url = \"https://tools.invalid/x\"";
    let config = format!("mode = \"{mode}\"");
    let house = HarnessFixture::open(HarnessSetup {
        config: &config,
        tools: "\"get_current_time\", \"post\", \"unknown\"",
        catalog: format!(
            "[[tools]]\ntool_name = \"get_current_time\"\n\
             [[tools]]\ntool_name = \"unknown\"\n{url}\n\
             [[tools]]\ntool_name = \"post\"\neffect = \"write\"\n{url}\n"
        ),
        ..fake("good")
    })
    .await;
    let run = house.post(&format!("call {tool}")).await;
    if let Some(answer) = answer {
        let question = house.question(&run).await;
        assert_contains!(question.to_string(), "call the tool post");
        assert!(question.to_string().contains("hi"), "{question}");
        house.answer(&question, answer).await;
    }
    let ended = house.ended(&run).await;
    assert_eq!(ended.ending(), "completed", "{}", ended.run);
    let is_refused = ended.text().contains("was not called: refused");
    assert_eq!(is_refused, !is_called, "{}", ended.text());
    assert_eq!(
        ended.of("action.requested").len(),
        usize::from(answer.is_some())
    );
}
