//! Interrupts of a graph as questions, and answers as the values that resume it.

use protocol::interaction::InteractionRequest;
use serde_json::{Value, json};

use crate::mapping::PersonAnswer;
use crate::upstream::json::{self, filled};
use crate::upstream::question::{ANSWER, MAX_ACTIONS, action, fields_of, question, value_of};
use crate::upstream::question_queue::InterruptForm;

/// Interrupts as questions, and answers as their ids and values.
pub(super) const FORM: InterruptForm = InterruptForm {
    question: |stored, number| {
        let interrupt = Interrupt::of(stored);
        // The number makes ids unique: interrupts of one task share an id.
        let id = interrupt.id.as_deref().unwrap_or("interrupt");
        interrupt.question(&format!("langgraph_{id}_{number}"))
    },
    resume: |stored, answer| {
        let interrupt = Interrupt::of(stored);
        json!([interrupt.id, interrupt.resume(answer)])
    },
};

/// The value that resumes the graph with all answers of [`FORM`].
pub(super) fn resume(mut answers: Vec<Value>) -> Value {
    // Servers accept a single value without an id, and older ones send no ids.
    if answers.len() < 2 {
        return answers
            .pop()
            .map(|mut answer| answer[1].take())
            .unwrap_or_default();
    }
    let named = answers.iter_mut();
    let named = named.filter_map(|answer| Some((answer[0].as_str()?.to_owned(), answer[1].take())));
    Value::Object(named.collect())
}

/// Members of a value that may hold the question, in order of priority.
const TEXTS: [&str; 8] = [
    "question",
    "message",
    "prompt",
    "description",
    "text",
    "instruction",
    "title",
    "action",
];

/// An interrupt that waits for its answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Interrupt {
    /// Absent on older servers.
    pub(super) id: Option<String>,
    value: Value,
    schema: Value,
}

/// Form of an answer, by the conventions of the LangChain libraries.
enum Shape {
    /// `HumanInTheLoopMiddleware`: one decision per requested call, of these kinds.
    Decisions(usize, Vec<&'static str>),
    /// The agent inbox: one response per request, of these kinds; `false` if no list surrounds it.
    Inbox(usize, Vec<&'static str>, bool),
    Options(Vec<(String, String, Value)>),
    Free,
}

/// Reads the interrupts of a list.
pub(super) fn read(list: &Value) -> Vec<Interrupt> {
    let items = list.as_array().into_iter().flatten();
    items
        .filter(|item| item.is_object())
        .map(Interrupt::of)
        .collect()
}

impl Interrupt {
    fn of(item: &Value) -> Self {
        let id = filled(&item["id"]).or_else(|| filled(&item["interrupt_id"]));
        Self {
            id: id.map(str::to_owned),
            value: item["value"].clone(),
            schema: item["response_schema"].clone(),
        }
    }

    /// The interrupt as stored in the state, in the form that [`read`] accepts.
    pub(super) fn stored(&self) -> Value {
        json!({"id": self.id, "value": self.value, "response_schema": self.schema})
    }

    /// The question under an id.
    fn question(&self, id: &str) -> InteractionRequest {
        let text = self.text();
        match self.shape() {
            Shape::Decisions(_, kinds) | Shape::Inbox(_, kinds, _) => {
                let takes_text = kinds
                    .iter()
                    .any(|kind| *kind != "approve" && *kind != "accept");
                let mut fields = Vec::new();
                if takes_text {
                    fields = fields_of(&Value::Null);
                }
                for field in &mut fields {
                    "Comment".clone_into(&mut field.label);
                    field.required = false;
                }
                let actions = kinds.iter().enumerate();
                let actions = actions.map(|(at, kind)| action(kind, label_of(kind), at));
                question(id, &text, fields, actions.collect())
            }
            Shape::Options(options) => {
                let actions = options.iter().enumerate();
                let actions = actions.map(|(at, (id, label, _))| action(id, label, at));
                question(id, &text, Vec::new(), actions.collect())
            }
            Shape::Free => question(id, &text, fields_of(&self.schema), Vec::new()),
        }
    }

    /// The value that resumes the graph.
    fn resume(&self, answer: &PersonAnswer) -> Value {
        let (taken, values) = (answer.action.as_deref(), &answer.values);
        let text = values.get(ANSWER).and_then(filled);
        let kind = |kinds: &[&'static str]| {
            let chosen = kinds.iter().find(|kind| Some(**kind) == taken);
            *chosen.or(kinds.first()).unwrap_or(&"approve")
        };
        match self.shape() {
            Shape::Decisions(count, kinds) => {
                let decision = match (kind(&kinds), text) {
                    ("approve", _) | (_, None) => json!({"type": kind(&kinds)}),
                    (kind, Some(text)) => json!({"type": kind, "message": text}),
                };
                // The graph expects one decision per call, and the person answers all of them at once.
                json!({"decisions": vec![decision; count]})
            }
            Shape::Inbox(count, kinds, is_list) => {
                let kind = kind(&kinds);
                let args = (kind == "response").then(|| text.unwrap_or_default());
                let response = json!({"type": kind, "args": args});
                if is_list {
                    json!(vec![response; count])
                } else {
                    response
                }
            }
            Shape::Options(options) => {
                let mut options = options.into_iter();
                let found = options.find(|(id, _, _)| Some(id.as_str()) == taken);
                found.map_or_else(|| json!(text), |(_, _, value)| value)
            }
            Shape::Free => value_of(&self.schema, values),
        }
    }

    fn shape(&self) -> Shape {
        let value = &self.value;
        if let Some(requests) = value["action_requests"].as_array() {
            let allowed = &value["review_configs"][0]["allowed_decisions"];
            let kinds = ["approve", "reject", "respond"];
            return Shape::Decisions(requests.len(), allowed_of(allowed, &kinds));
        }
        let first = value.get(0).unwrap_or(value);
        if first["action_request"].is_object() {
            let config = &first["config"];
            let kinds = [
                ("accept", "allow_accept"),
                ("response", "allow_respond"),
                ("ignore", "allow_ignore"),
            ];
            let kinds = kinds.iter().filter(|(_, key)| config[*key] == true);
            let kinds: Vec<_> = kinds.map(|(kind, _)| *kind).collect();
            let count = value.as_array().map_or(1, Vec::len);
            let kinds = if kinds.is_empty() {
                vec!["accept"]
            } else {
                kinds
            };
            return Shape::Inbox(count, kinds, value.is_array());
        }
        let options = options_of(value);
        if options.is_empty() || properties_are_stated(&self.schema) {
            Shape::Free
        } else {
            Shape::Options(options)
        }
    }

    fn text(&self) -> String {
        let value = self.value.get(0).unwrap_or(&self.value);
        let requests = self.value["action_requests"].as_array();
        if let Some(requests) = requests.filter(|requests| !requests.is_empty()) {
            return requests
                .iter()
                .map(request_text)
                .collect::<Vec<_>>()
                .join("\n");
        }
        let question_text = TEXTS.iter().find_map(|name| filled(&value[*name]));
        if question_text.is_none() && value["action_request"].is_object() {
            return request_text(&value["action_request"]);
        }
        let question_text = question_text.map(str::to_owned);
        question_text
            .or_else(|| json::text_of(value))
            .unwrap_or_default()
    }
}

fn properties_are_stated(schema: &Value) -> bool {
    schema["properties"].is_object()
}

fn request_text(request: &Value) -> String {
    if let Some(text) = filled(&request["description"]) {
        return text.to_owned();
    }
    let name = filled(&request["name"]).or_else(|| filled(&request["action"]));
    format!("{}: {}", name.unwrap_or("call"), request["args"])
}

fn allowed_of(allowed: &Value, kinds: &[&'static str]) -> Vec<&'static str> {
    let is_allowed = |kind: &str| match allowed.as_array() {
        Some(allowed) => allowed.iter().any(|allowed| allowed == kind),
        None => matches!(kind, "approve" | "reject"),
    };
    let allowed: Vec<_> = kinds
        .iter()
        .copied()
        .filter(|kind| is_allowed(kind))
        .collect();
    if allowed.is_empty() {
        vec!["approve"]
    } else {
        allowed
    }
}

fn label_of(kind: &str) -> &'static str {
    match kind {
        "approve" => "Approve",
        "accept" => "Accept",
        "reject" => "Reject",
        "ignore" => "Ignore",
        _ => "Respond",
    }
}

/// Options: texts, or objects with a value and a label. Empty if there are too many for buttons.
fn options_of(value: &Value) -> Vec<(String, String, Value)> {
    let list = ["options", "choices"]
        .iter()
        .find_map(|name| value[*name].as_array());
    let list = list.filter(|list| list.len() <= MAX_ACTIONS);
    let mut options: Vec<(String, String, Value)> = Vec::new();
    for (at, option) in list.into_iter().flatten().enumerate() {
        let value = ["value", "id", "label"]
            .iter()
            .find_map(|name| option.get(*name));
        let value = value.unwrap_or(option);
        let label = ["label", "title", "name"]
            .iter()
            .find_map(|name| filled(&option[*name]));
        let label = label.map(str::to_owned).or_else(|| json::text_of(value));
        options.push((
            format!("option_{}", at + 1),
            label.unwrap_or_default(),
            value.clone(),
        ));
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: &Value, taken: Option<&str>, values: &Value, resumed: &Value) {
        let interrupt = &read(&json!([{"id": "i", "value": value}]))[0];
        let request = interrupt.question("q");
        assert!(!request.title.is_empty() && !request.fallback_text.is_empty());
        if let Some(taken) = taken {
            assert!(
                request.actions.iter().any(|action| action.id == taken),
                "{request:?}"
            );
        }
        let answer = PersonAnswer {
            action: taken.map(str::to_owned),
            values: values.as_object().unwrap().clone(),
        };
        assert_eq!(interrupt.resume(&answer), *resumed, "{value}");
    }

    #[test]
    fn answers_resume_by_the_form_of_their_interrupt() {
        let none = json!({});
        let answer = json!({"answer": "no"});
        check(&json!("Sure?"), None, &answer, &json!("no"));
        check(
            &json!({"question": "Go?", "options": ["yes", {"label": "No", "value": 0}]}),
            Some("option_2"),
            &none,
            &json!(0),
        );
        let review = json!({
            "action_requests": [{"name": "send", "args": {}}, {"name": "pay", "args": {}}],
            "review_configs": [{"action_name": "send", "allowed_decisions": ["approve", "edit", "reject"]}],
        });
        let approve = json!({"type": "approve"});
        let reject = json!({"type": "reject", "message": "no"});
        check(
            &review,
            Some("approve"),
            &answer,
            &json!({"decisions": [approve, approve]}),
        );
        check(
            &review,
            Some("reject"),
            &answer,
            &json!({"decisions": [reject, reject]}),
        );
        let inbox = json!([{"action_request": {"action": "send", "args": {}}, "config": {"allow_accept": true, "allow_respond": true}}]);
        check(
            &inbox,
            Some("accept"),
            &none,
            &json!([{"type": "accept", "args": null}]),
        );
        check(
            &inbox,
            Some("response"),
            &answer,
            &json!([{"type": "response", "args": "no"}]),
        );
    }
}
