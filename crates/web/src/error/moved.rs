//! Maps errors of a translated request to the original request.

use serde_json::{Value, json};

use super::api_error::ApiError;

impl ApiError {
    /// The same error with each JSON pointer mapped.
    #[must_use]
    pub fn moved(mut self, to: impl Fn(&str) -> String) -> Self {
        let Some(at) = self.details.get("pointer").and_then(Value::as_str) else {
            return self;
        };
        let moved = to(at);
        // `faults` begins the message with the pointer of the first fault.
        if let Some(rest) = self.message.strip_prefix(at)
            && !at.is_empty()
        {
            self.message = format!("{moved}{rest}");
        }
        self.details.insert("pointer".to_owned(), json!(moved));
        let faults = self.details.get_mut("faults").and_then(Value::as_array_mut);
        for fault in faults.into_iter().flatten() {
            if let Some(pointer) = fault["pointer"].as_str().map(&to) {
                fault["pointer"] = json!(pointer);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_pointers_in_message_and_details() {
        let moved = ApiError::invalid("/a/0", "must be x").moved(|at| at.replace("/a", "/b"));
        let (_, error) = moved.into_parts();
        assert_eq!(error.message, "/b/0 must be x");
        assert_eq!(error.details["pointer"], "/b/0");
        assert_eq!(error.details["faults"][0]["pointer"], "/b/0");
        let (_, other) = ApiError::internal().moved(|_| "/b".to_owned()).into_parts();
        assert!(other.details.is_empty());
    }
}
