//! A valid reference survives a round trip, and resolves to the location it names.

use action_graph::bind::is_binding;
use action_graph::ids::{is_action_id, is_graph_id, is_section_id};
use action_graph::reference::{Reference, is_pointer};
use serde_json::json;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    check_reference(text);
    for prefix in [
        "md:",
        "action:",
        "runtime://",
        "artifact:",
        "artifact://",
        "input:event#",
    ] {
        check_reference(&format!("{prefix}{text}"));
    }
    if is_pointer(text) {
        assert!(text.is_empty() || text.starts_with('/'));
        assert!(text.split('/').count() <= 17);
    }
    assert!(is_binding(&json!({"$ref": text})));
}

fn check_reference(text: &str) {
    let Ok(reference) = text.parse::<Reference>() else {
        return;
    };
    let printed = reference.to_string();
    assert!(printed.len() <= text.len() + 32, "{printed} of {text}");
    assert_eq!(
        printed.parse().as_ref(),
        Ok(&reference),
        "{printed} of {text}"
    );
    match &reference {
        Reference::Section(id) => assert!(is_section_id(id)),
        Reference::Action { id, pointer, .. } => {
            assert!(is_action_id(id.as_str()) && is_pointer(pointer));
        }
        Reference::Runtime { graph, pointer, .. } => {
            assert!(is_graph_id(&graph.0) && is_pointer(pointer));
        }
        Reference::Declaration(graph) => assert!(is_graph_id(&graph.0)),
        Reference::Event(pointer) | Reference::Item(pointer) | Reference::Own(pointer) => {
            assert!(is_pointer(pointer));
        }
        Reference::Goal | Reference::Artifact(_) => {}
    }
}
