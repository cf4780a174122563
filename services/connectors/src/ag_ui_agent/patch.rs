//! JSON Patch (RFC 6902) for the agent's state, within bounds.

use serde_json::Value;

/// Maximum operations of one patch.
const MAX_OPERATIONS: usize = 200;
/// Maximum bytes of one copied value: repeated copies would grow exponentially.
const MAX_COPIED: usize = 64 * 1024;

/// Applies a patch. `None` if an operation fails; then the document is unchanged.
pub(super) fn apply(document: &mut Value, patch: &Value) -> Option<()> {
    let operations = patch.as_array()?;
    if operations.len() > MAX_OPERATIONS {
        return None;
    }
    // Work on a copy: RFC 6902 applies all operations or none.
    let mut changed = document.clone();
    for operation in operations {
        step(&mut changed, operation)?;
    }
    *document = changed;
    Some(())
}

fn step(document: &mut Value, operation: &Value) -> Option<()> {
    let path = operation["path"].as_str()?;
    let value = || operation.get("value").cloned();
    match operation["op"].as_str()? {
        "add" => add(document, path, value()?),
        "remove" => remove(document, path).map(drop),
        "replace" => {
            *at(document, path)? = value()?;
            Some(())
        }
        "move" => {
            let from = operation["from"].as_str()?;
            // RFC 6902 forbids a move into the value's own child.
            if path
                .strip_prefix(from)
                .is_some_and(|rest| rest.starts_with('/'))
            {
                return None;
            }
            let moved = remove(document, from)?;
            add(document, path, moved)
        }
        "copy" => {
            let copied = at(document, operation["from"].as_str()?)?.clone();
            if copied.to_string().len() > MAX_COPIED {
                return None;
            }
            add(document, path, copied)
        }
        "test" => (*at(document, path)? == value()?).then_some(()),
        _ => None,
    }
}

fn at<'a>(document: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    document.pointer_mut(path)
}

/// The parent of the last part of a path, and that part.
fn holder<'a>(document: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let (parent, last) = path.rsplit_once('/')?;
    // RFC 6901: unescape `~1` first, else `~01` would become a slash.
    let last = last.replace("~1", "/").replace("~0", "~");
    Some((at(document, parent)?, last))
}

fn add(document: &mut Value, path: &str, value: Value) -> Option<()> {
    if path.is_empty() {
        *document = value;
        return Some(());
    }
    let (parent, last) = holder(document, path)?;
    match parent {
        Value::Object(members) => {
            members.insert(last, value);
        }
        Value::Array(items) => {
            let index = if last == "-" {
                items.len()
            } else {
                last.parse().ok()?
            };
            // `insert` panics beyond the end.
            if index > items.len() {
                return None;
            }
            items.insert(index, value);
        }
        _ => return None,
    }
    Some(())
}

fn remove(document: &mut Value, path: &str) -> Option<Value> {
    if path.is_empty() {
        return Some(document.take());
    }
    let (parent, last) = holder(document, path)?;
    match parent {
        Value::Object(members) => members.remove(&last),
        Value::Array(items) => {
            let index: usize = last.parse().ok()?;
            (index < items.len()).then(|| items.remove(index))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patches_change_documents() {
        let mut state = json!({"a": {"b": [1, 2]}, "c/d": 0});
        let patch = json!([
            {"op": "test", "path": "/a/b/0", "value": 1},
            {"op": "add", "path": "/a/b/-", "value": 3},
            {"op": "add", "path": "/a/b/0", "value": 0},
            {"op": "replace", "path": "/c~1d", "value": 5},
            {"op": "copy", "from": "/a/b", "path": "/e"},
            {"op": "remove", "path": "/a/b/1"},
            {"op": "move", "from": "/a/b", "path": "/f"},
        ]);
        apply(&mut state, &patch).unwrap();
        assert_eq!(
            state,
            json!({"a": {}, "c/d": 5, "e": [0, 1, 2, 3], "f": [0, 2, 3]})
        );
        apply(
            &mut state,
            &json!([{"op": "replace", "path": "", "value": 1}]),
        )
        .unwrap();
        assert_eq!(state, 1);
    }

    #[test]
    fn rejects_invalid_patches_unchanged() {
        let state = json!({"a": [1], "long": "x".repeat(MAX_COPIED)});
        let add = json!({"op": "add", "path": "/b", "value": 1});
        for wrong in [
            json!({"op": "remove", "path": "/none"}),
            json!({"op": "add", "path": "/a/2", "value": 1}),
            json!({"op": "add", "path": "/none/x", "value": 1}),
            json!({"op": "test", "path": "/a", "value": []}),
            json!({"op": "move", "from": "/a", "path": "/a/0"}),
            json!({"op": "copy", "from": "", "path": "/a/-"}),
            json!({"op": "merge", "path": "/a"}),
            json!(7),
        ] {
            let mut changed = state.clone();
            assert_eq!(apply(&mut changed, &json!([add, wrong])), None, "{wrong}");
            assert_eq!(changed, state);
        }
        let many = Value::from(vec![add; MAX_OPERATIONS + 1]);
        assert_eq!(apply(&mut state.clone(), &many), None);
    }
}
