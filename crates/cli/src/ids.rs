//! Short ids: printed by their random tail, accepted by any unique part.

use anyhow::bail;
use serde_json::Value;

use crate::gateway::Gateway;
use crate::table::one_line;

/// Length of the tail of a UUID that is printed. Its head is a clock, equal for runs of the same minute.
const TAIL: usize = 8;
/// Digits of a UUID without hyphens.
const DIGITS: usize = 32;
/// Maximum number of runs, newest first, that are compared with a part of an id.
const MAX_SEARCHED: usize = 2000;
/// Maximum number of candidates of an ambiguous part that are printed.
const MAX_SHOWN: usize = 10;

/// The printed part of an id.
pub fn tail(id: &str) -> &str {
    let start = id.len().saturating_sub(TAIL);
    id.get(start..).unwrap_or(id)
}

/// Path of a list, the parameter of its next page, and the members of its items.
pub(super) struct NamedList<'a> {
    /// Singular noun of an item.
    pub(super) noun: &'a str,
    pub(super) path: &'a str,
    pub(super) cursor: &'a str,
    /// Member with the id.
    pub(super) id: &'a str,
    /// Member with a name, which also selects the item.
    pub(super) name: Option<&'a str>,
    /// Command that prints the list.
    pub(super) command: &'a str,
    /// Member that describes a candidate.
    pub(super) about: &'a str,
}

pub(super) const RUNS: NamedList<'_> = NamedList {
    noun: "run",
    path: "/v1/runs",
    cursor: "cursor",
    id: "run_id",
    name: None,
    command: "runnel runs list",
    about: "status",
};

/// The id of an item given by its id, a part of it, or its name. A complete UUID is not looked up.
pub(super) async fn find_id(
    gateway: &Gateway,
    list: &NamedList<'_>,
    named: &str,
) -> anyhow::Result<String> {
    // Old runs are beyond the searched ones, so a complete id must not need the list.
    if list.name.is_none() && digits(named).is_some_and(|digits| digits.len() == DIGITS) {
        return Ok(named.to_owned());
    }
    let items = gateway.list(list.path, list.cursor, MAX_SEARCHED).await?;
    select(list, &items, named)
}

fn select(list: &NamedList<'_>, items: &[Value], named: &str) -> anyhow::Result<String> {
    let id_of = |item: &Value| item[list.id].as_str().unwrap_or_default().to_owned();
    let is_named = |item: &&Value| {
        let name = list.name.and_then(|name| item[name].as_str());
        name == Some(named) || item[list.id] == named
    };
    // An exact name comes first: it may look like a part of an id.
    if let Some(item) = items.iter().find(is_named) {
        return Ok(id_of(item));
    }
    // Hyphens do not matter in a part of an id.
    let part = digits(named);
    let matches = |item: &&Value| {
        let id = id_of(item).replace('-', "");
        part.as_ref()
            .is_some_and(|part| id.starts_with(part) || id.ends_with(part))
    };
    let found: Vec<&Value> = items.iter().filter(matches).collect();
    let NamedList { noun, command, .. } = list;
    match found.as_slice() {
        [] => bail!("there is no {noun} {named}; `{command}` lists them"),
        [one] => Ok(id_of(one)),
        several => {
            let about = |item: &Value| item[list.about].as_str().map(one_line);
            // The error stays readable in a terminal.
            let candidates = several.iter().take(MAX_SHOWN).map(|item| {
                let about = about(item).unwrap_or_default();
                format!("\n  {}  {about}", id_of(item))
            });
            let candidates: String = candidates.collect();
            let more = several.len().saturating_sub(MAX_SHOWN);
            let more = if more == 0 {
                String::new()
            } else {
                format!("\n  and {more} more")
            };
            bail!(
                "{} {noun}s match {named}; give more of the id:{candidates}{more}",
                several.len()
            )
        }
    }
}

/// Lower-case digits of a UUID or of a part of one.
fn digits(text: &str) -> Option<String> {
    let digits = text.trim_matches('…').replace('-', "").to_lowercase();
    let is_part = (1..=DIGITS).contains(&digits.len());
    (is_part && digits.bytes().all(|digit| digit.is_ascii_hexdigit())).then_some(digits)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FIRST: &str = "01a218e2-0000-7000-8000-0000aaaa1111";
    const SECOND: &str = "01a218e2-0000-7000-8000-0000bbbb1111";

    fn items() -> Vec<Value> {
        vec![
            json!({"run_id": FIRST, "status": "completed"}),
            json!({"run_id": SECOND, "status": "failed"}),
        ]
    }

    #[test]
    fn unique_parts_select_an_item() {
        for part in ["aaaa1111", "…aaaa1111", "0000AAAA1111", FIRST] {
            assert_eq!(select(&RUNS, &items(), part).unwrap(), FIRST, "{part}");
        }
    }

    #[test]
    fn ambiguous_parts_name_the_candidates() {
        for part in ["01a218e2", "01a218e2-0000", "1111"] {
            let error = select(&RUNS, &items(), part).unwrap_err().to_string();
            assert!(error.starts_with("2 runs match"), "{error}");
            assert!(error.contains(FIRST) && error.contains(SECOND), "{error}");
        }
        for part in ["", "hello", "cccc"] {
            let error = select(&RUNS, &items(), part).unwrap_err().to_string();
            assert!(error.starts_with("there is no run"), "{error}");
        }
    }

    #[test]
    fn names_precede_parts_of_ids() {
        let agents = NamedList {
            id: "id",
            name: Some("name"),
            ..RUNS
        };
        let items = [
            json!({"id": FIRST, "name": "bbbb1111"}),
            json!({"id": SECOND, "name": "hello"}),
        ];
        assert_eq!(select(&agents, &items, "bbbb1111").unwrap(), FIRST);
        assert_eq!(select(&agents, &items, "hello").unwrap(), SECOND);
    }

    #[test]
    fn tails_tell_runs_of_one_moment_apart() {
        assert_eq!(tail(FIRST), "aaaa1111");
        assert_eq!(tail("天x"), "天x");
    }
}
