//! Validation of transcript searches.

use std::collections::HashSet;

use protocol::admin::Fault;
use protocol::history::{HistoryFilters, HistorySearch};

use crate::text_index::TextQuery;

/// Default and maximum number of results.
const DEFAULT_TOP: u64 = 10;
const MAX_TOP: u64 = 100;
/// Maximum names of one filter.
pub const MAX_NAMES: usize = 16;
/// Maximum characters of a filter name.
const MAX_NAME_CHARS: usize = 64;

/// A validated search. The cursors of its filters are not decoded yet.
#[derive(Clone, Debug)]
pub struct ValidSearch {
    pub query: TextQuery,
    pub top: u64,
    pub filters: HistoryFilters,
}

/// Validates a search. Returns all faults with JSON pointers.
pub fn check_search(search: &HistorySearch) -> Result<ValidSearch, Vec<Fault>> {
    let mut faults = Vec::new();
    let query = TextQuery::parse(&search.query)
        .inspect_err(|fault| faults.push(Fault::new("/query", fault.to_string())));
    let top = search.top_k.unwrap_or(DEFAULT_TOP);
    if !(1..=MAX_TOP).contains(&top) {
        faults.push(Fault::new("/top_k", format!("must be 1 to {MAX_TOP}")));
    }
    let mut filters = search.filters.clone().unwrap_or_default();
    check_names("/filters/roles", &filters.roles, &mut faults);
    check_names("/filters/item_types", &filters.item_types, &mut faults);
    // Repeated names would only add parameters to the database query.
    for names in [&mut filters.roles, &mut filters.item_types] {
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
    }
    // A fault of the query is already in the list.
    match query {
        Ok(query) if faults.is_empty() => Ok(ValidSearch {
            query,
            top,
            filters,
        }),
        _ => Err(faults),
    }
}

fn check_names(pointer: &str, names: &[String], faults: &mut Vec<Fault>) {
    if names.len() > MAX_NAMES {
        let message = format!("must have at most {MAX_NAMES} items");
        faults.push(Fault::new(pointer, message));
        // No faults of single names: a long list would repeat its error for each.
        return;
    }
    let is_name = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=MAX_NAME_CHARS).contains(&name.len()) && name.bytes().all(plain)
    };
    for (index, name) in names.iter().enumerate() {
        if !is_name(name) {
            let message = format!("must be 1 to {MAX_NAME_CHARS} letters, digits or any of `._-`");
            faults.push(Fault::new(format!("{pointer}/{index}"), message));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(search: serde_json::Value, expected: &[&str]) {
        let json = search.to_string();
        let search: HistorySearch = serde_json::from_value(search).unwrap();
        let faults = check_search(&search).err().unwrap_or_default();
        let pointers: Vec<_> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(pointers, expected, "{json}");
    }

    #[test]
    fn reports_all_faults_of_searches() {
        check(json!({"query": "a"}), &[]);
        check(json!({"query": "a", "filters": null, "top_k": null}), &[]);
        check(json!({"query": "a", "top_k": 100}), &[]);
        check(json!({"query": " ", "top_k": 0}), &["/query", "/top_k"]);
        check(json!({"query": "a", "top_k": 101}), &["/top_k"]);
        let names = json!({"roles": ["user", ""], "item_types": ["a\0b", "message"]});
        check(
            json!({"query": "a", "filters": names}),
            &["/filters/roles/1", "/filters/item_types/0"],
        );
        let many = vec!["user"; 17];
        check(
            json!({"query": "a", "filters": {"roles": many}}),
            &["/filters/roles"],
        );
    }

    #[test]
    fn defaults_to_ten_results() {
        let search = HistorySearch {
            query: "a".to_owned(),
            ..HistorySearch::default()
        };
        assert_eq!(check_search(&search).unwrap().top, 10);
    }
}
