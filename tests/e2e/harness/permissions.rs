//! Permission requests of a harness as interactions.

use crate::support::harness::{HarnessFixture, fake, user_message};

#[tokio::test]
async fn allowed_permission_covers_one_request() {
    let house = HarnessFixture::open(fake("good")).await;
    let run = house.post("permit made.txt").await;
    let question = house.question(&run).await;
    let actions = question["request"]["actions"]
        .as_array()
        .expect("actions")
        .clone();
    let ids: Vec<_> = actions
        .iter()
        .map(|action| action["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["allow_once", "allow_conversation", "reject"]);
    house.answer(&question, "allow_once").await;
    let ended = house.ended(&run).await;
    assert_eq!(ended.ending(), "completed");
    assert!(house.workspace().join("made.txt").exists());

    // A single approval covers one request: the next message asks again.
    let run = house.post("permit again.txt").await;
    let question = house.question(&run).await;
    house.answer(&question, "reject").await;
    let ended = house.ended(&run).await;
    assert!(!house.workspace().join("again.txt").exists());
    assert_contains!(ended.logs(), "was not given: refused");
}

#[tokio::test]
async fn conversation_permission_is_requested_once() {
    let house = HarnessFixture::open(fake("good")).await;
    let run = house.post("permit made.txt").await;
    let question = house.question(&run).await;
    house.answer(&question, "allow_conversation").await;
    house.ended(&run).await;
    std::fs::remove_file(house.workspace().join("made.txt")).unwrap();
    let ended = house.ask("permit made.txt").await;
    assert_eq!(ended.ending(), "completed");
    assert!(house.workspace().join("made.txt").exists());
    assert!(ended.of("action.requested").is_empty());
}

#[tokio::test]
async fn command_beyond_the_question_cannot_be_allowed() {
    let house = HarnessFixture::open(fake("good")).await;
    let run = house.post("permit long.txt").await;
    let question = house.question(&run).await;
    let actions = question["request"]["actions"].as_array().unwrap();
    let ids: Vec<_> = actions.iter().map(|action| &action["id"]).collect();
    assert_eq!(ids, ["reject"]);
    let shown = question["request"]["description"].as_str().unwrap();
    assert!(shown.contains("bytes are not shown"), "{shown}");
    house.answer(&question, "reject").await;
    let ended = house.ended(&run).await;
    assert_contains!(ended.logs(), "a question cannot show all of it");
    assert!(!house.workspace().join("long.txt").exists());
}

#[tokio::test]
async fn expired_permission_differs_from_a_rejected_one() {
    let mut setup = fake("good");
    setup.config = "approval-seconds = 1";
    let house = HarnessFixture::open(setup).await;
    let ended = house.ask("permit made.txt").await;
    assert_eq!(ended.ending(), "completed");
    assert_contains!(ended.logs(), "nobody answered in time");
    assert!(!house.workspace().join("made.txt").exists());
}

#[tokio::test]
async fn surface_without_interactions_rejects_permissions_at_once() {
    let house = HarnessFixture::open(fake("good")).await;
    let run = house
        .client
        .post(&user_message("permit made.txt", false))
        .await
        .run_id();
    let ended = house.ended(&run).await;
    assert_eq!(ended.ending(), "completed");
    assert_contains!(ended.logs(), "this surface cannot ask");
    assert!(!house.workspace().join("made.txt").exists());
}

#[tokio::test]
async fn modes_decide_permissions_without_interaction() {
    for (mode, is_made) in [("full", true), ("read-only", false), ("accept-edits", true)] {
        let config = format!("mode = \"{mode}\"");
        let mut setup = fake("good");
        setup.config = &config;
        let house = HarnessFixture::open(setup).await;
        let ended = house.ask("permit made.txt").await;
        assert_eq!(ended.ending(), "completed");
        assert!(ended.of("action.requested").is_empty(), "{mode}");
        assert_eq!(
            house.workspace().join("made.txt").exists(),
            is_made,
            "{mode}"
        );
    }
}
