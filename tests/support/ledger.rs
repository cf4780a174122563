//! Invariants of every ledger, for any fate of its run.

use serde_json::Value;

/// The events of the pages, byte for byte.
#[derive(Clone, Debug, PartialEq)]
pub struct Ledger(pub Vec<String>);

impl Ledger {
    pub fn events(&self) -> Vec<Value> {
        self.0
            .iter()
            .map(|event| serde_json::from_str(event).unwrap())
            .collect()
    }

    /// The events of type `kind`.
    pub fn of_type(&self, kind: &str) -> Vec<Value> {
        let mut events = self.events();
        events.retain(|event| event["type"] == kind);
        events
    }

    /// The event types in order.
    pub fn types(&self) -> Vec<String> {
        let of = |event: &Value| event["type"].as_str().unwrap().to_owned();
        self.events().iter().map(of).collect()
    }

    /// The concatenated text of all deltas.
    pub fn text(&self) -> String {
        let of = |event: &Value| {
            event["data"]["chunk"]["content"]
                .as_str()
                .map(ToOwned::to_owned)
        };
        self.events().iter().filter_map(of).collect()
    }

    pub fn last(&self) -> Value {
        self.0
            .last()
            .map_or(Value::Null, |event| serde_json::from_str(event).unwrap())
    }

    pub fn is_ended(&self) -> bool {
        self.types().iter().any(|kind| is_terminal(kind))
    }

    /// Asserts dense sequence numbers from 1, one run id, and no event after a terminal.
    pub fn assert_valid(&self, run_id: &str) {
        let events = self.events();
        for (event, sequence) in events.iter().zip(1_u64..) {
            assert_eq!(event["sequence"], sequence, "{event}");
            assert_eq!(event["run_id"], run_id, "{event}");
        }
        let types = self.types();
        let ended = types.iter().position(|kind| is_terminal(kind));
        assert!(
            ended.is_none_or(|at| at + 1 == types.len()),
            "after the terminal: {types:?}"
        );
    }
}

fn is_terminal(kind: &str) -> bool {
    matches!(kind, "run.completed" | "run.failed")
}
