//! For any lines of a runner: accepted results are valid, each line counts once, and nothing follows the
//! terminal result.

use std::sync::LazyLock;

use domain::authorization::AuthorizationSnapshot;
use domain::normalize::{
    ExpectedOutput, Reason, ResultEffect, ResultLimits, ResultValidator, Verdict,
};
use protocol::admin::DeltaMode;
use protocol::resources::StateScope;
use serde_json::{Value, json};

const LIMITS: ResultLimits = ResultLimits {
    event_bytes: 512,
    run_bytes: 4096,
    run_events: 24,
    state_value_bytes: 64,
};

static SNAPSHOT: LazyLock<AuthorizationSnapshot> = LazyLock::new(|| {
    let nil = "00000000-0000-0000-0000-000000000000";
    serde_json::from_value(json!({
        "v": 1, "run_id": nil, "workspace_id": "default", "agent_id": nil, "agent_version": 1,
        "runner_id": "plugin:a/b/c", "endpoint_id": nil, "event_id": "e", "conversation": null, "resources": {},
        "available_apis": {}, "operations": ["state:conversation"], "state": {"conversation": "identity"},
        "decisions": [],
    }))
    .expect("a snapshot")
});

pub fn check(data: &[u8]) {
    let (kind, stream) = crate::split(data);
    // `#` is replaced by the run id, so that the fuzzer soon finds a valid line.
    let id = SNAPSHOT.run_id.to_string();
    let lines: Vec<Vec<u8>> = stream
        .split(|byte| *byte == b'\n')
        .map(|line| {
            line.iter()
                .flat_map(|byte| match byte {
                    b'#' => id.as_bytes().to_vec(),
                    byte => vec![*byte],
                })
                .collect()
        })
        .collect();
    let first = validate_all(kind, &lines);
    assert_eq!(
        first,
        validate_all(kind, &lines),
        "a second validation differs"
    );
}

fn validate_all(kind: u8, lines: &[Vec<u8>]) -> Vec<String> {
    let mode = if kind & 1 == 0 {
        DeltaMode::Increment
    } else {
        DeltaMode::Snapshot
    };
    let expected = if kind & 2 == 0 {
        ExpectedOutput::Message
    } else {
        ExpectedOutput::Nothing
    };
    let mut validator = ResultValidator::new(&SNAPSHOT, LIMITS, mode, expected);
    let (mut verdicts, mut ended, mut last) = (Vec::new(), false, 0);
    let (mut rejected, mut duplicates, mut gaps) = (0, 0, 0);
    for line in lines {
        let verdict = validator.validate(line, 0);
        let mut over = false;
        match &verdict {
            Verdict::Accept(accepted) => {
                assert!(!ended, "accepted after the end");
                assert!(line.len() <= LIMITS.event_bytes, "larger than any event");
                gaps += u64::from(accepted.gap);
                // Each shortened member counts as rejected; the rest of the result stays.
                rejected += accepted.shortened.len() as u64;
                if let Some(number) = accepted.runner_sequence {
                    assert!(number > last, "{number} after {last}");
                    last = number;
                }
                check_json_line(accepted.data.get());
                if let Some(usage) = &accepted.usage {
                    check_json_line(usage.get());
                }
                match &accepted.effect {
                    ResultEffect::End(_) => ended = true,
                    ResultEffect::SetState(update) => {
                        assert_eq!(
                            (update.scope, update.identity.as_str()),
                            (StateScope::Conversation, "identity")
                        );
                        assert!(!update.key.starts_with("host."), "the gateway's own key");
                        assert!(update.value.len() <= LIMITS.state_value_bytes);
                        assert!(
                            serde_json::from_str::<Value>(&update.value).is_ok(),
                            "a value that no parser reads"
                        );
                    }
                    ResultEffect::Ask(_) => panic!("asks are not granted"),
                    ResultEffect::Act(_) => panic!("platform actions are not granted"),
                    ResultEffect::None | ResultEffect::BindArtifact(_) => {}
                }
            }
            Verdict::Duplicate => duplicates += 1,
            Verdict::Reject(rejection) => {
                rejected += 1;
                assert!(!ended || rejection.reason == Reason::AfterTerminal);
                assert!(rejection.excerpt.len() <= 3 * 4096 && !rejection.excerpt.contains('\0'));
            }
            Verdict::Fail(..) => {
                rejected += 1;
                assert!(!ended, "failed after the end");
                over = true;
            }
        }
        verdicts.push(format!("{verdict:?}"));
        if over {
            break;
        }
    }
    let tally = validator.tally();
    assert_eq!(
        (tally.rejected, tally.duplicates, tally.gaps),
        (rejected, duplicates, gaps)
    );
    verdicts
}

/// The JSON is one line that every parser reads as an object.
fn check_json_line(json: &str) {
    assert!(
        !json.contains(['\n', '\r', '\0']),
        "{json:?} is more than a line"
    );
    let value: Value = serde_json::from_str(json).expect("accepted data is JSON");
    assert!(value.is_object(), "{json}");
    let text = value.to_string();
    assert!(!domain::event::contains_nul(&text), "{text}");
}
