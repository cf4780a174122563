use super::*;

fn seen(arm: Arm, messages: &Value) -> ModelRequest {
    ModelRequest::of(Some(arm), &json!({"messages": messages}))
}

fn first(arm: Arm, task: Task) -> PolicyOutput {
    let messages = json!([{"role": "user", "content": task.prompt(1)}]);
    next(arm, &seen(arm, &messages)).unwrap()
}

fn calls(output: PolicyOutput) -> usize {
    match output {
        PolicyOutput::Calls(calls) => calls.len(),
        PolicyOutput::Carrier(carrier) => carrier["calls"].as_array().unwrap().len(),
        PolicyOutput::Text(text) => {
            let block = text.split("```").nth(1).unwrap();
            let block = block.strip_prefix("json agent-protocol").unwrap();
            let block: Value = serde_json::from_str(block).unwrap();
            block["payload"]["actions"].as_array().unwrap().len()
        }
    }
}

#[test]
fn first_output_uses_form_of_arm() {
    for (task, expected) in [
        (Task::FiveReads, [1, 5, 5, 5, 5, 5, 5]),
        (Task::Chain, [1, 1, 1, 1, 4, 4, 4]),
        (Task::Judgement, [1; 7]),
        (Task::List, [1, 1, 1, 1, 1, 2, 2]),
        (Task::Alternative, [1, 1, 1, 1, 1, 2, 2]),
    ] {
        let found = Arm::ALL.map(|arm| calls(first(arm, task)));
        assert_eq!(found, expected, "{task:?}");
    }
}

#[test]
fn answers_hold_only_tokens_from_results() {
    let user = json!({"role": "user", "content": Task::FindRead.prompt(1)});
    let found = json!({"role": "tool", "content": "{\"page\":\"found-7\"}"});
    let code = json!({"role": "tool", "content": "{\"code\":\"code-found-7\"}"});
    let arm = Arm::Serial;
    let output = next(arm, &seen(arm, &json!([user, found])));
    let call = ("read_page".to_owned(), json!({"page": "found-7"}));
    assert_eq!(output, Some(PolicyOutput::Calls(vec![call])));
    let output = next(arm, &seen(arm, &json!([user, found, code])));
    assert_eq!(
        output,
        Some(PolicyOutput::Text("The answer: code-found-7.".to_owned()))
    );
}

#[test]
fn failed_calls_lead_to_the_alternative() {
    let user = json!({"role": "user", "content": Task::Alternative.prompt(1)});
    let failed = json!({"role": "tool", "content": "Error: mirror a is down"});
    let arm = Arm::Parallel;
    let output = next(arm, &seen(arm, &json!([user, failed])));
    let call = ("mirror_b".to_owned(), json!({"file": "f1"}));
    assert_eq!(output, Some(PolicyOutput::Calls(vec![call])));
}

#[test]
fn missing_alert_line_ends_loop() {
    let user = json!({"role": "user", "content": Task::Large.prompt(1)});
    let cut = json!({"role": "tool", "content": "line 1 is fine"});
    let arm = Arm::Parallel;
    let output = next(arm, &seen(arm, &json!([user, cut])));
    assert!(matches!(output, Some(PolicyOutput::Text(text)) if text.contains("does not hold")));
}

#[test]
fn unknown_tasks_get_no_output() {
    let messages = json!([{"role": "user", "content": "hi"}]);
    assert_eq!(next(Arm::Full, &seen(Arm::Full, &messages)), None);
}
