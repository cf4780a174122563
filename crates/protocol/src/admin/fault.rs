//! Validation faults of a document, as error responses list them.

use serde::{Deserialize, Serialize};

/// Maximum number of faults in one error response.
pub const MAX_FAULTS: usize = 8;
/// Maximum characters of a pointer or message in an error response.
pub const FAULT_CHARS: usize = 500;

/// A validation fault: a JSON pointer to the value, and a message with the correction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Fault {
    pub pointer: String,
    pub message: String,
}

impl Fault {
    /// Creates a fault at `pointer`.
    pub fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            message: message.into(),
        }
    }

    /// Returns the first faults of a document for an error response: at most [`MAX_FAULTS`], each text cut to
    /// [`FAULT_CHARS`]. This keeps the response shorter than a large document.
    pub fn first(faults: &[Self]) -> Vec<Self> {
        // The document may have thousands of faults, and the response must stay shorter than the document.
        let named = faults.iter().take(MAX_FAULTS);
        named
            .map(|fault| Self::new(cut(&fault.pointer), cut(&fault.message)))
            .collect()
    }

    /// Returns the same fault for a document that contains this one at `prefix`.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        self.pointer.insert_str(0, prefix);
        self
    }
}

fn cut(text: &str) -> String {
    // Characters, not bytes: a cut within a character would panic.
    text.chars().take(FAULT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_number_and_length_of_faults() {
        let long = "ü".repeat(2 * FAULT_CHARS);
        let faults = vec![Fault::new(long.clone(), long); MAX_FAULTS + 1];
        let named = Fault::first(&faults);
        assert_eq!(named.len(), MAX_FAULTS);
        let texts = named
            .iter()
            .flat_map(|fault| [&fault.pointer, &fault.message]);
        for text in texts {
            assert_eq!(text.chars().count(), FAULT_CHARS);
        }
        let short = [Fault::new("/a", "is not valid")];
        assert_eq!(Fault::first(&short), short);
    }
}
