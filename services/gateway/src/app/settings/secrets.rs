//! Resolves secret references.

use std::collections::BTreeMap;

use http::HeaderValue;
use secrecy::{ExposeSecret as _, SecretString};

use crate::config::{ConfigFault, SecretRef};

/// The secret of a reference. An unreadable secret becomes a fault at `pointer` and an empty value.
pub(super) fn secret(
    reference: &SecretRef,
    pointer: &str,
    faults: &mut Vec<ConfigFault>,
) -> SecretString {
    reference.resolve().unwrap_or_else(|error| {
        // An empty value lets the reading continue, so that further faults are found.
        faults.push(ConfigFault::new(pointer.to_owned(), error));
        SecretString::default()
    })
}

/// Values of static headers. Each value is treated as a secret.
pub(super) fn headers(
    entries: &BTreeMap<String, SecretRef>,
    pointer: &str,
    faults: &mut Vec<ConfigFault>,
) -> BTreeMap<String, SecretString> {
    let mut headers = BTreeMap::new();
    for (name, reference) in entries {
        let pointer = format!("{pointer}.headers.{name}");
        let value = secret(reference, &pointer, faults);
        if HeaderValue::from_str(value.expose_secret()).is_err() {
            let message = "holds characters that no header may have";
            faults.push(ConfigFault::new(pointer, message));
        }
        headers.insert(name.clone(), value);
    }
    headers
}
