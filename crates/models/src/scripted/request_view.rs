//! Parts of a request that scripts can match.

use protocol::JsonObject;
use serde_json::Value;

/// Parts of a request. Missing parts are empty.
pub(super) struct RequestView<'a> {
    /// The newest user message, and the first and last of those before it.
    pub(super) input: String,
    pub(super) first: String,
    pub(super) before: String,
    /// The newest tool result.
    pub(super) tool: String,
    pub(super) is_after_tool: bool,
    /// The first retrieved passage.
    pub(super) passage: String,
    pub(super) offered: Vec<&'a str>,
}

impl<'a> RequestView<'a> {
    pub(super) fn of(body: &'a JsonObject) -> Self {
        let items = |key| {
            body.get(key)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
        };
        let of_role = |role: &'static str| {
            let messages = items("messages").filter(move |message| message["role"] == role);
            messages.map(|message| text(&message["content"])).rev()
        };
        let found = ["user", "system"].map(|role| of_role(role).find_map(|text| retrieved(&text)));
        let passage = found.into_iter().flatten().next();
        let words = |text: String| match retrieved(&text) {
            // The passage is matched separately, so conditions see only the user's words.
            Some((_, words)) => words,
            None => text,
        };
        let mut user_texts = of_role("user").map(words);
        let input = user_texts.next().unwrap_or_default();
        let before = user_texts.next().unwrap_or_default();
        let first = user_texts.next_back().unwrap_or_else(|| before.clone());
        let last = items("messages").next_back();
        Self {
            input,
            first,
            before,
            tool: of_role("tool").next().unwrap_or_default(),
            is_after_tool: last.is_some_and(|last| last["role"] == "tool"),
            passage: passage.map(|(passage, _)| passage).unwrap_or_default(),
            offered: items("tools")
                .filter_map(|tool| tool["function"]["name"].as_str())
                .collect(),
        }
    }

    /// Fills a template.
    pub(super) fn fill(&self, template: &str) -> String {
        let mut filled = String::with_capacity(template.len());
        let mut rest = template;
        while let Some((before, from)) = rest.split_once('{') {
            // Only text after the brace is searched, so inserted text is not expanded again.
            filled.push_str(before);
            let named = from.split_once('}');
            let value = named.and_then(|(name, after)| Some((self.value(name)?, after)));
            if let Some((value, after)) = value {
                filled.push_str(value);
                rest = after;
            } else {
                filled.push('{');
                rest = from;
            }
        }
        filled + rest
    }

    fn value(&self, name: &str) -> Option<&str> {
        match name {
            "input" => Some(&self.input),
            "first" => Some(&self.first),
            "before" => Some(&self.before),
            "tool" => Some(&self.tool),
            "passage" => Some(&self.passage),
            _ => None,
        }
    }
}

/// The first passage of the JSON that a message begins with, and the text after the JSON.
fn retrieved(message: &str) -> Option<(String, String)> {
    let mut values = serde_json::Deserializer::from_str(message).into_iter::<Value>();
    let data = values.next()?.ok()?;
    let passage = data["data"]["chunks"][0]["content"].as_str()?;
    let words = message.get(values.byte_offset()..)?.trim_start();
    Some((passage.to_owned(), words.to_owned()))
}

fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(messages: &Value, template: &str, expected: &str) {
        let body = json!({"messages": messages});
        let view = RequestView::of(body.as_object().unwrap());
        assert_eq!(view.fill(template), expected, "{messages}");
    }

    #[test]
    fn fills_templates_with_messages_and_passages() {
        let retrieved = |passage: &str| {
            let data = json!({"data": {"chunks": [{"index": 1, "content": passage}]}});
            json!({"role": "system", "content": data.to_string()})
        };
        let user = |text: &str| json!({"role": "user", "content": text});
        let all = "{first}|{before}|{input}|{tool}|{passage}";
        check(&json!([]), all, "||||");
        check(&json!([user("a")]), all, "||a||");
        check(&json!([user("a"), user("b")]), all, "a|a|b||");
        check(
            &json!([
                {"role": "system", "content": "{}"}, retrieved("old"), user("a"), user("b"), retrieved("p"),
                user("c"), {"role": "tool", "content": [{"type": "text", "text": "t"}]},
            ]),
            all,
            "a|b|c|t|p",
        );
        let data = json!({"data": {"chunks": [{"index": 1, "content": "p"}]}});
        let with_data = format!("{data}\n\nb\n\nc");
        check(&json!([user("a"), user(&with_data)]), all, "a|a|b\n\nc||p");
    }

    #[test]
    fn keeps_inserted_braces_and_unknown_names() {
        let messages = json!([{"role": "user", "content": "{tool} {input}"}]);
        check(&messages, "{input}, {who}, {", "{tool} {input}, {who}, {");
        check(
            &messages,
            "{\"a\": \"{input}\"}",
            "{\"a\": \"{tool} {input}\"}",
        );
    }
}
