//! Administrative changes as JSON patches (RFC 6902).

use json_patch::{PatchOperation, TestOperation, diff, patch};
use serde_json::{Value, json};

/// The patch that makes one document the other. `None`: the object does not exist. Empty: both are equal.
///
/// A `test` with the old value precedes each `replace` and `remove`, so that the patch has both values.
pub fn patch_between(before: Option<&Value>, after: Option<&Value>) -> Vec<Value> {
    match (before, after) {
        (None, None) => Vec::new(),
        (None, Some(after)) => vec![json!({"op": "add", "path": "", "value": after})],
        (Some(before), None) => vec![
            json!({"op": "test", "path": "", "value": before}),
            json!({"op": "remove", "path": ""}),
        ],
        (Some(before), Some(after)) => {
            let operations = tested_operations(before, after).into_iter();
            operations.map(|operation| json!(operation)).collect()
        }
    }
}

fn tested_operations(before: &Value, after: &Value) -> Vec<PatchOperation> {
    let mut current = before.clone();
    let mut operations = Vec::new();
    for operation in diff(before, after).0 {
        if let PatchOperation::Replace(_) | PatchOperation::Remove(_) = &operation
            // Read from the patched document: a `remove` moves the later items of its list.
            && let Some(value) = current.pointer(operation.path().as_str())
        {
            operations.push(PatchOperation::Test(TestOperation {
                path: operation.path().to_owned(),
                value: value.clone(),
            }));
        }
        // A difference of two documents always applies to the first one.
        let applied = patch(&mut current, std::slice::from_ref(&operation));
        debug_assert!(applied.is_ok(), "{applied:?}");
        operations.push(operation);
    }
    operations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_precede_replaced_and_removed_values() {
        let before = json!({"name": "a", "tools": ["x", "y", "z"], "gone": {"n": 1}});
        let after = json!({"name": "b", "tools": ["x"], "new": null});
        let mut operations = patch_between(Some(&before), Some(&after));
        // The order of members depends on the features of the build.
        operations.sort_by_key(|operation| operation["path"].to_string());
        assert_eq!(
            json!(operations),
            json!([
                {"op": "test", "path": "/gone", "value": {"n": 1}},
                {"op": "remove", "path": "/gone"},
                {"op": "test", "path": "/name", "value": "a"},
                {"op": "replace", "path": "/name", "value": "b"},
                {"op": "add", "path": "/new", "value": null},
                {"op": "test", "path": "/tools/1", "value": "y"},
                {"op": "remove", "path": "/tools/1"},
                {"op": "test", "path": "/tools/1", "value": "z"},
                {"op": "remove", "path": "/tools/1"},
            ])
        );
    }

    #[test]
    fn patches_apply_to_the_first_document() {
        let documents = [
            json!({}),
            json!({"a": [1, {"b": []}], "~/": "x"}),
            json!({"a": {"0": 1}, "~/": null, "c": [[]]}),
            json!({"a": [1], "": 2}),
        ];
        for before in &documents {
            for after in &documents {
                let operations = json!(patch_between(Some(before), Some(after)));
                let operations: json_patch::Patch = serde_json::from_value(operations).unwrap();
                let mut patched = before.clone();
                patch(&mut patched, &operations).unwrap();
                assert_eq!(patched, *after);
                assert_eq!(operations.0.is_empty(), before == after);
            }
        }
    }

    #[test]
    fn creation_and_deletion_have_the_complete_document() {
        let document = json!({"name": "a"});
        assert_eq!(
            patch_between(None, Some(&document)),
            [json!({"op": "add", "path": "", "value": document})]
        );
        assert_eq!(
            patch_between(Some(&document), None),
            [
                json!({"op": "test", "path": "", "value": document}),
                json!({"op": "remove", "path": ""})
            ]
        );
        assert!(patch_between(None, None).is_empty());
    }
}
