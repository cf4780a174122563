use protocol::approval::{ApprovalScope, ApprovalSpec, ArgumentRules};
use protocol::interaction::InteractionSubmission;
use serde_json::{Value, json};

use super::*;
use crate::interaction::{REQUEST_BYTES, check_answer, check_request};

fn rules(value: Value) -> ArgumentRules {
    serde_json::from_value(value).unwrap()
}

fn call(parameters: &Value) -> HeldCall {
    serde_json::from_value(json!({"tool": "fs_write", "parameters": parameters})).unwrap()
}

#[test]
fn every_argument_needs_a_rule() {
    for (given, arguments, expected) in [
        (json!({}), json!({}), true),
        (json!({}), json!({"a": 1}), false),
        (json!({"": {"any": true}}), json!({"a": {"b": [1]}}), true),
        (json!({"": {"any": true}}), json!({}), true),
        (json!({"/a": {"equals": 1}}), json!({"a": 1}), true),
        (
            json!({"/a": {"equals": 1}}),
            json!({"a": 1, "force": true}),
            false,
        ),
        (json!({"/a": {"equals": 1}}), json!({}), false),
        (json!({"/a": {"any": true}}), json!({}), true),
        (json!({"/a/b": {"equals": 1}}), json!({"a": {"b": 1}}), true),
        (
            json!({"/a/b": {"equals": 1}}),
            json!({"a": {"b": 1, "c": 2}}),
            false,
        ),
        (
            json!({"/a": {"equals": {"b": 1}}}),
            json!({"a": {"b": 1, "c": 2}}),
            false,
        ),
        (json!({"/l/0": {"any": true}}), json!({"l": ["x"]}), true),
        (
            json!({"/l/0": {"any": true}}),
            json!({"l": ["x", "y"]}),
            false,
        ),
        (json!({"/a/b": {"any": true}}), json!({"a": {}}), false),
        (json!({"/a~1b": {"equals": 1}}), json!({"a/b": 1}), true),
    ] {
        assert_eq!(
            covers(&rules(given.clone()), &arguments),
            expected,
            "{given} {arguments}"
        );
    }
}

#[test]
fn values_of_other_types_are_other_values() {
    let number = rules(json!({"/n": {"equals": 1}}));
    let listed = rules(json!({"/n": {"one_of": [1, true, "a"]}}));
    let range = rules(json!({"/n": {"range": {"min": 0, "max": 9_007_199_254_740_992_u64}}}));
    for (value, is_number, is_listed, is_in_range) in [
        (json!(1), true, true, true),
        (json!("1"), false, false, false),
        (json!(1.0), false, false, true),
        (json!([1]), false, false, false),
        (json!({"n": 1}), false, false, false),
        (json!(true), false, true, false),
        (json!("true"), false, false, false),
        (json!("a"), false, true, false),
        (json!("\u{430}"), false, false, false),
        (json!(null), false, false, false),
        (json!(-1), false, false, false),
        (json!(9_007_199_254_740_993_u64), false, false, false),
        (json!(1e300), false, false, false),
    ] {
        let arguments = json!({"n": value});
        assert_eq!(covers(&number, &arguments), is_number, "equals {value}");
        assert_eq!(covers(&listed, &arguments), is_listed, "one_of {value}");
        assert_eq!(covers(&range, &arguments), is_in_range, "range {value}");
    }
}

#[test]
fn prefixes_admit_no_climbing_and_no_commands() {
    let path = rules(json!({"/p": {"prefix": "/repo/src/"}}));
    let command = rules(json!({"/p": {"prefix": "cargo test"}}));
    for (text, expected) in [
        ("/repo/src/lib.rs", true),
        ("/repo/src/世界/a.rs", true),
        ("/repo/src/.hidden", true),
        ("/repo/src/../../etc/passwd", false),
        ("/repo/src/a/..", false),
        ("/repo/src/..\\x", false),
        ("/repo/src/%2e%2e/x", false),
        ("/repo/src/\u{2025}/x", false),
        ("/repo/src/\u{ff0e}\u{ff0e}/x", false),
        ("/repo/src/a\u{2215}b", false),
        ("/repo/src/a\u{202e}b", false),
        ("/repo/src/a\u{200b}", false),
        ("/repo/src/a\nb", false),
        ("/repo/src/a\0", false),
        ("/repo/src", false),
        ("/repo/srcx", false),
        ("\u{feff}/repo/src/a", false),
        ("cargo test", true),
        ("cargo test -p domain --lib", true),
        ("cargo test; rm -rf /", false),
        ("cargo test && rm x", false),
        ("cargo test | sh", false),
        ("cargo test $(id)", false),
        ("cargo test `id`", false),
        ("cargo test > /etc/x", false),
        ("cargo test\nrm x", false),
        ("cargo test --manifest-path=../x", false),
        ("Cargo test", false),
    ] {
        let arguments = json!({"p": text});
        let is_covered = covers(&path, &arguments) || covers(&command, &arguments);
        assert_eq!(is_covered, expected, "{text:?}");
    }
    assert!(!covers(&path, &json!({"p": ["/repo/src/a"]})));
    // A text that holds JSON is a text.
    assert!(!covers(
        &rules(json!({"/p/a": {"equals": 1}})),
        &json!({"p": "{\"a\":1}"})
    ));
}

#[test]
fn reports_faults_of_rules_with_pointers() {
    let given = rules(json!({
        "a": {"equals": 1}, "/b": {"any": false}, "/c": {"prefix": ""}, "/d": {"prefix": "/x/../"},
        "/e": {"one_of": []}, "/f": {"range": {}}, "/g~2": {"any": true}, "/ok": {"equals": null},
    }));
    let faults = check_rules(&given, "/arguments");
    let pointers: Vec<_> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
    let expected = ["~1b", "~1c", "~1d", "~1e", "~1f", "~1g~02", "a"];
    assert_eq!(pointers, expected.map(|name| format!("/arguments/{name}")));
    for wrong in [
        json!({"/a": {"equal": 1}}),
        json!({"/a": {"equals": 1, "any": true}}),
        json!({"/a": {"range": {"min": "1"}}}),
        json!({"/a": "x"}),
    ] {
        assert!(
            serde_json::from_value::<ArgumentRules>(wrong.clone()).is_err(),
            "{wrong}"
        );
    }
}

#[test]
fn reports_faults_of_approvals_with_pointers() {
    let faults_of = |value: Value| {
        let spec: ApprovalSpec = serde_json::from_value(value).unwrap();
        let faults = check_approval(&spec, 1_000).into_iter();
        faults.map(|fault| fault.pointer).collect::<Vec<_>>()
    };
    assert!(
        faults_of(json!({"tool": "fs_*", "agent": "coder", "count": 1, "expires_at": 1_001}))
            .is_empty()
    );
    let run = "0192f0c1-2345-7000-8000-000000000000";
    let wrong =
        json!({"tool": "*_*", "count": 0, "expires_at": 1_000, "agent": "a", "run_id": run});
    assert_eq!(
        faults_of(wrong),
        ["/tool", "/count", "/expires_at", "/run_id"]
    );
    assert_eq!(faults_of(json!({"tool": "t"})), ["/agent"]);
}

#[test]
fn questions_show_exact_arguments_and_fit_their_bounds() {
    let short = call(
        &json!({"to": "a\u{202e}b\u{200b}", "tag": "\u{e0041}", "b": 1, "a": {"z": 1, "y": 2}}),
    );
    let question_of =
        |call: &HeldCall| question("tool_ask.1", call, ApprovalScope::Conversation, 10);
    let request = question_of(&short).unwrap();
    let description = request.description.clone().unwrap();
    let expected = r#"{"a":{"y":2,"z":1},"b":1,"tag":"\udb40\udc41","to":"a\u202eb\u200b"}"#;
    assert!(description.contains(expected), "{description}");
    for parameters in [
        json!({}),
        json!({"text": "ä".repeat(70_000)}),
        json!({"text": "\u{200b}".repeat(20_000)}),
    ] {
        let request = question_of(&call(&parameters)).unwrap();
        assert_eq!(check_request(&request, Some(0)), []);
        assert!(canonical_json(&request).len() < REQUEST_BYTES);
    }
    assert_eq!(
        question_of(&call(&json!({"text": "x".repeat(200_000)}))),
        None
    );
    let names = |widest| {
        let request = question("tool_ask.1", &short, widest, 10).unwrap();
        request
            .actions
            .into_iter()
            .map(|action| action.id)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names(ApprovalScope::Conversation),
        ["allow_once", "allow_conversation", "deny"]
    );
    assert_eq!(names(ApprovalScope::Run), ["allow_once", "deny"]);
}

#[test]
fn answers_cover_the_call_of_the_question() {
    let held_call = call(&json!({"path": "/repo/a", "text": "x"}));
    let request = question("tool_ask.1", &held_call, ApprovalScope::Conversation, 10).unwrap();
    let read = |action: &str, values: Value| {
        let submission: InteractionSubmission = serde_json::from_value(
            json!({"interaction_id": "tool_ask.1", "action_id": action, "values": values}),
        )
        .unwrap();
        assert_eq!(check_answer(&request, &submission), []);
        read_answer(&submission, &held_call)
    };
    assert_eq!(read("allow_once", json!({})), Ok(ApprovalAnswer::Once));
    assert_eq!(
        read("deny", json!({"reason": "no"})),
        Ok(ApprovalAnswer::Deny)
    );
    let exact = rules(json!({"/path": {"equals": "/repo/a"}, "/text": {"equals": "x"}}));
    for values in [
        json!({}),
        json!({"arguments": " "}),
        json!({"arguments": canonical_json(&exact)}),
    ] {
        let answer = read("allow_conversation", values);
        assert_eq!(answer, Ok(ApprovalAnswer::Conversation(exact.clone())));
    }
    let wide = r#"{"/path": {"prefix": "/repo/"}, "/text": {"any": true}}"#;
    assert!(read("allow_conversation", json!({"arguments": wide})).is_ok());
    for wrong in [
        "{",
        "[]",
        r#"{"/path": {"prefix": "/other/"}, "/text": {"any": true}}"#,
        "{}",
        r#"{"x": {"any": true}}"#,
    ] {
        let refused = read("allow_conversation", json!({"arguments": wrong})).unwrap_err();
        assert_eq!(refused.pointer, "/values/arguments", "{wrong}");
    }
}

#[test]
fn amendments_end_with_their_run() {
    let parameters = json!({"path": "/repo/a"});
    let needed =
        json!({"definition_sha256": "00", "rule": "resource_policy.tools does not name it"});
    let held_call: HeldCall = serde_json::from_value(
        json!({"tool": "fs_write", "parameters": parameters, "amends": needed}),
    )
    .unwrap();
    assert_ne!(held_call.text(), call(&parameters).text());
    let request = question("tool_ask.1", &held_call, ApprovalScope::Conversation, 10).unwrap();
    assert_eq!(check_request(&request, Some(0)), []);
    let description = request.description.clone().unwrap();
    for shown in [
        r#"{"path":"/repo/a"}"#,
        "resource_policy.tools does not name it",
    ] {
        assert!(description.contains(shown), "{description}");
    }
    let actions: Vec<_> = request.actions.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(actions, ["allow_once", "allow_run", "deny"]);
    let read = |action: &str, values: Value| {
        let submission: InteractionSubmission = serde_json::from_value(
            json!({"interaction_id": "tool_ask.1", "action_id": action, "values": values}),
        )
        .unwrap();
        read_answer(&submission, &held_call)
    };
    let exact = rules(json!({"/path": {"equals": "/repo/a"}}));
    for (values, count) in [
        (json!({}), 1),
        (json!({"count": null}), 1),
        (json!({"count": 3}), 3),
    ] {
        let rules = exact.clone();
        let expected = ApprovalAnswer::Run { rules, count };
        assert_eq!(read("allow_run", values), Ok(expected));
    }
    for (action, values, pointer) in [
        ("allow_conversation", json!({}), "/action_id"),
        ("allow_run", json!({"count": 0}), "/values/count"),
        ("allow_run", json!({"count": 1.5}), "/values/count"),
        ("allow_run", json!({"count": "3"}), "/values/count"),
        ("allow_run", json!({"arguments": "{}"}), "/values/arguments"),
    ] {
        assert_eq!(read(action, values).unwrap_err().pointer, pointer);
    }
}

#[test]
fn amendments_open_one_definition_of_a_tool() {
    let text = |tool: Value| definition_text(&serde_json::from_value(tool).unwrap());
    let own = json!({"tool_name": "t", "source": "mcp:a", "effect": "read", "parameters": {"type": "object"}});
    for (member, other) in [
        ("tool_name", json!("u")),
        ("source", json!("mcp:b")),
        ("effect", json!("write")),
        ("parameters", json!({})),
    ] {
        let mut changed = own.clone();
        changed[member] = other;
        assert_ne!(text(changed), text(own.clone()), "{member}");
    }
    let mut described = own.clone();
    described["description"] = json!("d");
    assert_eq!(text(described), text(own));
}

#[test]
fn denials_give_their_reason_to_the_model() {
    let reason = |value: Value| denial_reason(value.as_object().unwrap());
    assert_eq!(
        reason(json!({"reason": " use the API "})).as_deref(),
        Some("use the API")
    );
    assert_eq!(
        reason(json!({"reason": "x".repeat(5_000)})).unwrap().len(),
        1_000
    );
    for none in [json!({}), json!({"reason": null}), json!({"reason": " "})] {
        assert_eq!(reason(none), None);
    }
}
