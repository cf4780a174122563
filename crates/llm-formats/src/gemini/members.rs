//! Members of requests. Google accepts each name in camel case and in snake case.

use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::Value;

use crate::escaped;

static ABSENT: Value = Value::Null;

/// Returns a member by its name in camel case. Null: it is absent.
pub(super) fn member<'a>(object: &'a Value, name: &str) -> &'a Value {
    object
        .as_object()
        .map_or(&ABSENT, |members| member_of(members, name))
}

/// The same of an object.
pub(super) fn member_of<'a>(members: &'a JsonObject, name: &str) -> &'a Value {
    let found = members.get(name).or_else(|| members.get(&snake(name)));
    found.unwrap_or(&ABSENT)
}

/// Returns the text of a member, or an empty text.
pub(super) fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    member(object, name).as_str().unwrap_or_default()
}

fn snake(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// Rejects members outside the allow-list. Null counts as absent. Pointers start at the object.
pub(super) fn check_members(value: &Value, allowed: &[&str]) -> Result<(), Fault> {
    match value.as_object() {
        Some(members) => check_object(members, allowed),
        None => Err(Fault::new("", "must be an object")),
    }
}

/// The same of an object.
pub(super) fn check_object(members: &JsonObject, allowed: &[&str]) -> Result<(), Fault> {
    for (name, value) in members {
        let is_allowed = allowed
            .iter()
            .any(|allowed| name == allowed || *name == snake(allowed));
        if !value.is_null() && !is_allowed {
            let message = format!(
                "is not allowed here: the gateway takes {}",
                allowed.join(", ")
            );
            return Err(Fault::new(format!("/{}", escaped(name)), message));
        }
    }
    Ok(())
}

/// Returns the items of a list. Absent: none.
pub(super) fn items(value: &Value, max: usize) -> Result<&[Value], Fault> {
    match value {
        Value::Null => Ok(&[]),
        Value::Array(items) if items.len() <= max => Ok(items),
        _ => Err(Fault::new("", format!("must be a list of at most {max}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn accepts_names_in_both_cases() {
        for body in [
            json!({"maxOutputTokens": 1}),
            json!({"max_output_tokens": 1}),
        ] {
            assert_eq!(member(&body, "maxOutputTokens"), 1);
            assert_eq!(check_members(&body, &["maxOutputTokens"]), Ok(()));
            assert!(check_members(&body, &["topP"]).is_err());
        }
        assert!(member(&json!([]), "a").is_null());
        assert_eq!(check_members(&json!({"x/y": null}), &[]), Ok(()));
        let fault = check_members(&json!({"x/y": 1}), &["a"]).unwrap_err();
        assert_eq!(fault.pointer, "/x~1y");
    }
}
