//! What is wrong in a document, as refusals name it.

use serde::{Deserialize, Serialize};

/// Faults that one refusal names.
pub const MOST_FAULTS: usize = 8;
/// Characters of a pointer or message in a refusal.
pub const FAULT_CHARS: usize = 500;

/// Something wrong in a document, and where: a JSON pointer and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Fault {
    pub pointer: String,
    pub message: String,
}

impl Fault {
    /// A fault at that place.
    pub fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            message: message.into(),
        }
    }

    /// The first faults of a document, as a refusal names them: at most [`MOST_FAULTS`], each text cut to
    /// [`FAULT_CHARS`]. So a refusal stays shorter than a large document.
    pub fn first(faults: &[Self]) -> Vec<Self> {
        let named = faults.iter().take(MOST_FAULTS);
        named
            .map(|fault| Self::new(cut(&fault.pointer), cut(&fault.message)))
            .collect()
    }

    /// The same fault in a document that holds this one at `prefix`.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        self.pointer.insert_str(0, prefix);
        self
    }
}

fn cut(text: &str) -> String {
    text.chars().take(FAULT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_first_faults_and_cuts_their_texts() {
        let long = "ü".repeat(2 * FAULT_CHARS);
        let faults = vec![Fault::new(long.clone(), long); MOST_FAULTS + 1];
        let named = Fault::first(&faults);
        assert_eq!(named.len(), MOST_FAULTS);
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
