//! Parts of manifests.

use protocol::manifest::{FormItem, I18n};

/// Text of a manifest in English only.
pub fn in_english(text: &str) -> I18n {
    I18n::from_iter([("en_US".to_owned(), text.to_owned())])
}

/// Configuration form from the JSON file that a service embeds.
///
/// # Panics
///
/// If the file is no list of fields.
pub fn form(json: &str) -> Vec<FormItem> {
    serde_json::from_str(json).expect("the embedded form is a list of fields")
}
