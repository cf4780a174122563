use serde_json::{Value, json};

use super::*;

const NOW: i64 = 1_795_291_200;

/// A minimal request with additional fields.
fn request(changes: Value) -> InteractionRequest {
    let mut body = json!({"interaction_id": "i-1", "title": "Sure?", "fallback_text": "yes or no"});
    let Value::Object(changes) = changes else {
        panic!("an object")
    };
    body.as_object_mut().unwrap().extend(changes);
    serde_json::from_value(body).unwrap()
}

fn field(id: &str, kind: &str) -> Value {
    json!({"id": id, "label": "L", "type": kind})
}

fn option(value: &str) -> Value {
    json!({"value": value, "label": "L"})
}

fn action(id: &str) -> Value {
    json!({"id": id, "label": "L"})
}

#[track_caller]
fn check(faults: Vec<Fault>, pointers: &[&str]) {
    let found: Vec<_> = faults.into_iter().map(|fault| fault.pointer).collect();
    assert_eq!(found, pointers);
}

#[track_caller]
fn check_question(changes: Value, pointers: &[&str]) {
    check(check_request(&request(changes), Some(NOW)), pointers);
}

#[test]
fn limits_question_lengths_in_characters() {
    for (name, least, max) in [
        ("interaction_id", 1, 255),
        ("title", 1, 1_000),
        ("description", 0, 10_000),
        ("fallback_text", 1, 20_000),
    ] {
        let pointer = format!("/{name}");
        for (length, fits) in [(least, true), (max, true), (max + 1, false)] {
            let pointers: &[&str] = if fits { &[] } else { &[&pointer] };
            check_question(json!({name: "é".repeat(length)}), pointers);
        }
        let pointers: &[&str] = if least == 0 { &[] } else { &[&pointer] };
        check_question(json!({name: ""}), pointers);
    }
}

#[test]
fn limits_lengths_of_question_parts() {
    let long = |length: usize| "x".repeat(length);
    check_question(
        json!({
            "fields": [{
                "id": long(129), "label": long(513), "type": "text", "placeholder": long(1_001),
                "options": [{"value": long(513), "label": "", "description": long(2_001)}],
            }],
            "actions": [{"id": "", "label": long(513)}],
        }),
        &[
            "/fields/0/id",
            "/fields/0/label",
            "/fields/0/placeholder",
            "/fields/0/options/0/value",
            "/fields/0/options/0/label",
            "/fields/0/options/0/description",
            "/actions/0/id",
            "/actions/0/label",
        ],
    );
    check_question(
        json!({
            "fields": [{
                "id": long(128), "label": long(512), "type": "text", "placeholder": long(1_000),
                "options": [{"value": long(512), "label": "L", "description": long(2_000)}],
            }],
            "actions": [{"id": "a", "label": long(512)}],
        }),
        &[],
    );
}

#[test]
fn limits_lists_of_questions() {
    let fields =
        |count: usize| -> Vec<_> { (0..count).map(|n| field(&n.to_string(), "text")).collect() };
    let actions = |count: usize| -> Vec<_> { (0..count).map(|n| action(&n.to_string())).collect() };
    let select = |count: usize| {
        let mut field = field("f", "select");
        let options: Vec<_> = (0..count).map(|n| option(&n.to_string())).collect();
        field["options"] = json!(options);
        json!([field])
    };
    check_question(json!({"fields": fields(50), "actions": actions(20)}), &[]);
    check_question(json!({"fields": fields(51)}), &["/fields"]);
    check_question(json!({"actions": actions(21)}), &["/actions"]);
    check_question(json!({"fields": select(100)}), &[]);
    check_question(json!({"fields": select(101)}), &["/fields/0/options"]);
}

#[test]
fn rejects_duplicate_ids_and_options() {
    check_question(
        json!({
            "fields": [
                field("a", "text"),
                {"id": "b", "label": "L", "type": "select", "options": [option("x"), option("x")]},
                field("a", "number"),
            ],
            "actions": [action("a"), action("b"), action("b")],
        }),
        &["/fields/2/id", "/fields/1/options/1/value", "/actions/2/id"],
    );
}

#[test]
fn select_fields_need_options() {
    for (kind, pointers) in [
        ("select", &["/fields/0/options"][..]),
        ("multiselect", &["/fields/0/options"]),
        ("text", &[]),
        ("file", &[]),
    ] {
        check_question(json!({"fields": [field("f", kind)]}), pointers);
    }
}

#[test]
fn questions_expire_within_a_day() {
    for (expires_at, fits) in [
        (NOW - 1, false),
        (NOW, false),
        (NOW + 1, true),
        (NOW + 86_400, true),
        (NOW + 86_401, false),
        (i64::MAX, false),
    ] {
        let pointers: &[&str] = if fits { &[] } else { &["/expires_at"] };
        check_question(json!({"expires_at": expires_at}), pointers);
    }
    assert_eq!(expires_at(&request(json!({})), NOW), NOW + 1_800);
    assert_eq!(
        expires_at(&request(json!({"expires_at": NOW + 5})), NOW),
        NOW + 5
    );
}

#[test]
fn limits_question_size_and_rejects_nul() {
    let large =
        json!({"id": "f", "label": "L", "type": "text", "default": "x".repeat(REQUEST_BYTES)});
    check_question(json!({"fields": [large]}), &[""]);
    check_question(json!({"title": "a\u{0}b"}), &[""]);
    check_question(json!({"title": "a\\u0000b"}), &[]);
}

fn submission(body: Value) -> InteractionSubmission {
    serde_json::from_value(body).unwrap()
}

#[test]
fn limits_answer_lengths_and_size() {
    for (body, pointers) in [
        (json!({"interaction_id": "i"}), &[][..]),
        (json!({"interaction_id": ""}), &["/interaction_id"]),
        (
            json!({"interaction_id": "é".repeat(255), "action_id": "é".repeat(128)}),
            &[],
        ),
        (
            json!({"interaction_id": "i".repeat(256), "action_id": "i".repeat(129)}),
            &["/interaction_id", "/action_id"],
        ),
        (
            json!({"interaction_id": "i", "values": {"f": "x".repeat(SUBMISSION_BYTES)}}),
            &[""],
        ),
        (
            json!({"interaction_id": "i", "values": {"f": "\u{0}"}}),
            &[""],
        ),
    ] {
        check(check_submission(&submission(body)), pointers);
    }
    let unknown = json!({"interaction_id": "i", "value": {}});
    assert!(serde_json::from_value::<InteractionSubmission>(unknown).is_err());
}

/// One field of every type; `text` is required.
fn form(actions: &[&str]) -> InteractionRequest {
    let options = json!([option("a"), option("b")]);
    let actions: Vec<_> = actions.iter().map(|id| action(id)).collect();
    request(json!({
        "fields": [
            {"id": "text", "label": "L", "type": "text", "required": true},
            field("area", "textarea"),
            {"id": "one", "label": "L", "type": "select", "options": options},
            {"id": "many", "label": "L", "type": "multiselect", "options": options},
            field("number", "number"),
            field("flag", "boolean"),
            field("file/1", "file"),
        ],
        "actions": actions,
    }))
}

#[track_caller]
fn check_values(values: &Value, pointers: &[&str]) {
    let answer = submission(json!({"interaction_id": "i-1", "values": values}));
    check(check_answer(&form(&[]), &answer), pointers);
}

#[test]
fn values_match_their_field_type() {
    check_values(
        &json!({"text": "x", "area": "", "one": "b", "many": ["b", "a"], "number": 0.5,
            "flag": false, "file/1": {"id": "f"}}),
        &[],
    );
    check_values(
        &json!({"text": "x", "area": null, "one": null, "many": null, "number": null}),
        &[],
    );
    for (id, values) in [
        ("area", vec![json!(1), json!(["x"])]),
        ("one", vec![json!("c"), json!(["a"]), json!(0)]),
        (
            "many",
            vec![json!("a"), json!(["a", "c"]), json!(["a", "a"]), json!([0])],
        ),
        ("number", vec![json!("1"), json!(true)]),
        ("flag", vec![json!("true"), json!(1)]),
    ] {
        for value in values {
            let pointer = format!("/values/{id}");
            check_values(&json!({"text": "x", id: value}), &[&pointer]);
        }
    }
    check_values(&json!({"text": "x", "a/b": 1}), &["/values/a~1b"]);
}

#[test]
fn requires_fields_unless_several_actions_exist() {
    for values in [json!({}), json!({"text": null}), json!({"text": ""})] {
        let answer = submission(json!({"interaction_id": "i-1", "values": values}));
        check(check_answer(&form(&[]), &answer), &["/values/text"]);
        check(check_answer(&form(&["send"]), &answer), &["/values/text"]);
        let left =
            submission(json!({"interaction_id": "i-1", "action_id": "leave", "values": values}));
        check(check_answer(&form(&["send", "leave"]), &left), &[]);
    }
}

#[test]
fn answers_need_existing_question_and_action() {
    let values = json!({"text": "x"});
    for (actions, action_id, pointers) in [
        (&[][..], Value::Null, &[][..]),
        (&[], json!("yes"), &["/action_id"]),
        (&["yes"], Value::Null, &[]),
        (&["yes", "no"], Value::Null, &["/action_id"]),
        (&["yes", "no"], json!("no"), &[]),
        (&["yes", "no"], json!("maybe"), &["/action_id"]),
    ] {
        let answer =
            submission(json!({"interaction_id": "i-1", "action_id": action_id, "values": values}));
        check(check_answer(&form(actions), &answer), pointers);
    }
    let other = submission(json!({"interaction_id": "i-2", "values": values}));
    check(check_answer(&form(&[]), &other), &["/interaction_id"]);
}
