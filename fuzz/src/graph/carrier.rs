//! Arguments of the carrier, native calls of other tools, and the strict JSON parser below both.

use action_graph::json::{canonical, parse};
use action_graph::output::ModelOutput;
use serde_json::Value;

/// Maximum nesting of the parser.
const DEPTH: usize = 16;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    check_json(text);
    super::FLAT.check_output(&ModelOutput::carrier(text));
    for name in ["read", "helper", "send", "runtime.merge"] {
        super::FLAT.check_output(&ModelOutput::call(name, text));
    }
}

fn check_json(text: &str) {
    let Ok(value) = parse(text, DEPTH) else {
        return;
    };
    let other: Value = serde_json::from_str(text).expect("the strict parser accepts only JSON");
    assert_eq!(value, other);
    let written = canonical(&value);
    assert_eq!(
        parse(&written, DEPTH).map(|one| canonical(&one)).as_deref(),
        Ok(&*written)
    );
}
