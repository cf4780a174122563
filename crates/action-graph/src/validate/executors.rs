//! The executor of each action: named, matched or replaced by the operator's table.

use std::collections::BTreeSet;

use crate::action::{Action, ChosenBy, Class, Condition, ExecutorKind, Resolved};
use crate::catalog::{Catalog, CatalogEntry, Cost};
use crate::code::Code;
use crate::declaration::Declaration;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::near::nearest;
use crate::validate::context::{Context, fields};
use crate::validate::edges;

/// Time that a wait leaves before the run's deadline, in milliseconds.
const WAIT_MARGIN: u64 = 10_000;
/// Names of form fields that ask for secrets.
const SECRETS: [&str; 8] = [
    "password",
    "passwd",
    "secret",
    "token",
    "api_key",
    "apikey",
    "credential",
    "private_key",
];

pub(super) fn check(draft: &mut Declaration, context: Context<'_>, found: &mut Diagnostics) {
    let fields = fields(draft.source.origin);
    for action in draft.actions_mut() {
        let at = format!("{}/{}", action.pointer, fields.target);
        // Without an entry the fault is reported; later gates skip the action.
        let Some((entry, chosen_by)) = choose(action, context, &at, found) else {
            continue;
        };
        check_entry(action, entry, context, &at, found);
        if entry.kind == ExecutorKind::Human {
            check_form(action, fields.input, found);
        }
        let mut settles = edges::settled_data(action);
        settles.extend(action.when.as_ref().and_then(Condition::waits_for).cloned());
        // Dependencies settle first in any case.
        settles.retain(|id| !action.depends_on.contains(id));
        settles.dedup();
        action.resolved = Some(Resolved {
            kind: entry.kind,
            target: entry.name.clone(),
            chosen_by,
            effects: entry.known_effects(),
            // The strictest values until the effects are checked.
            class: Class::AtMostOnce,
            approval: false,
            visibility: entry.visibility,
            max_parallel: entry.max_parallel,
            settles,
        });
    }
}

fn choose<'a>(
    action: &Action,
    context: Context<'a>,
    at: &str,
    found: &mut Diagnostics,
) -> Option<(&'a CatalogEntry, ChosenBy)> {
    let catalog = context.catalog;
    let requested = &action.executor;
    let (entry, chosen_by) = match (requested.kind, &requested.target) {
        (Some(kind), Some(name)) => (named(catalog, kind, name, at, found)?, ChosenBy::Model),
        (Some(ExecutorKind::Tool), None) => (tool(action, catalog, at, found)?, ChosenBy::Runtime),
        // The field's fault was reported, unless the action requests no executor.
        (None, Some(_)) => return None,
        (kind, None) => (
            matching(action, kind, catalog, at, found)?,
            ChosenBy::Runtime,
        ),
    };
    let key = format!("{}:{}", entry.kind.as_str(), entry.name);
    let other = catalog
        .overrides
        .get(&key)
        .and_then(|name| catalog.find(entry.kind, name));
    let Some(other) = other else {
        return Some((entry, chosen_by));
    };
    let message = format!("`{}` runs instead of `{}`", other.name, entry.name);
    found.add(Code::TargetOverridden, at, message);
    Some((other, ChosenBy::Policy))
}

fn named<'a>(
    catalog: &'a Catalog,
    kind: ExecutorKind,
    name: &str,
    at: &str,
    found: &mut Diagnostics,
) -> Option<&'a CatalogEntry> {
    if let Some(entry) = catalog.find(kind, name) {
        return Some(entry);
    }
    let shown: String = name.chars().take(64).collect();
    let code = match kind {
        ExecutorKind::Agent => Code::UnknownAgent,
        ExecutorKind::Runtime | ExecutorKind::Human => Code::UnknownWord,
        _ => Code::UnknownTool,
    };
    let message = format!("there is no {} `{shown}`", kind.as_str());
    let mut diagnostic = Diagnostic::new(code, at, message);
    let names = || catalog.of_kind(kind).filter(|entry| entry.granted);
    // The most frequent mistake: the right name with the wrong class.
    if let Some(other) = ExecutorKind::ALL
        .into_iter()
        .find(|kind| catalog.find(*kind, name).is_some())
    {
        diagnostic = diagnostic.hint(format!("`{shown}` is of type {}", other.as_str()));
    } else if let Some(near) = nearest(name, names().map(|entry| entry.name.as_str())) {
        diagnostic = diagnostic.hint(format!("did you mean `{near}`?"));
    }
    found.push(diagnostic.allow(names().map(|entry| entry.name.clone())));
    None
}

/// The only granted tool that has all capabilities; tools are named otherwise.
fn tool<'a>(
    action: &Action,
    catalog: &'a Catalog,
    at: &str,
    found: &mut Diagnostics,
) -> Option<&'a CatalogEntry> {
    let wanted = &action.executor.capabilities;
    let able = catalog
        .of_kind(ExecutorKind::Tool)
        .filter(|entry| has_all(entry, wanted));
    let able: Vec<_> = able.filter(|entry| entry.granted).collect();
    // Without capabilities any single tool would be chosen by chance.
    if let ([one], false) = (able.as_slice(), wanted.is_empty()) {
        return Some(one);
    }
    let names = catalog
        .of_kind(ExecutorKind::Tool)
        .filter(|entry| entry.granted);
    let diagnostic = Diagnostic::new(Code::AutoTool, at, "a tool must be named");
    found.push(diagnostic.allow(names.map(|entry| entry.name.clone())));
    None
}

fn has_all(entry: &CatalogEntry, wanted: &[String]) -> bool {
    wanted.iter().all(|one| entry.capabilities.contains(one))
}

/// The best match by capabilities, operation, words and cost.
fn matching<'a>(
    action: &Action,
    kind: Option<ExecutorKind>,
    catalog: &'a Catalog,
    at: &str,
    found: &mut Diagnostics,
) -> Option<&'a CatalogEntry> {
    let fits = |entry: &&CatalogEntry| {
        kind.is_none_or(|kind| kind == entry.kind)
            && entry.granted
            && entry.available
            && entry.can_execute
    };
    let scored = catalog.entries().iter().filter(fits);
    let scored = scored.map(|entry| (score(action, entry), entry));
    let best = scored
        .filter(|(score, _)| *score > 0)
        // Names break ties, so that the choice is stable.
        .max_by(|(a, one), (b, other)| a.cmp(b).then_with(|| other.name.cmp(&one.name)));
    if best.is_none() {
        let names = catalog
            .entries()
            .iter()
            .filter(fits)
            .map(CatalogEntry::carrier_name);
        let diagnostic = Diagnostic::new(Code::NoMatch, at, "no executor matches");
        found.push(diagnostic.allow(names));
    }
    best.map(|(_, entry)| entry)
}

fn score(action: &Action, entry: &CatalogEntry) -> i32 {
    let wanted = &action.executor.capabilities;
    let mut score = 0;
    if !wanted.is_empty() {
        // Capabilities are requirements, not preferences.
        if !has_all(entry, wanted) {
            return 0;
        }
        score += 4;
    }
    if entry.capabilities.contains(&action.operation) {
        score += 2;
    }
    let task =
        ["description", "prompt"].map(|key| action.input.get(key).and_then(|one| one.as_str()));
    let task = task.into_iter().flatten().next().unwrap_or_default();
    // Bounded: a prompt may be long.
    let task: String = task.chars().take(500).collect();
    let mine = stems(&format!(
        "{} {} {task}",
        action.operation.replace('_', " "),
        action.title
    ));
    let theirs = stems(&entry.description);
    let shared = theirs.iter().filter(|word| mine.contains(*word)).count();
    score += i32::try_from(shared.min(3)).unwrap_or(3);
    score
        // Cost only decides between similar matches.
        - match entry.cost {
            Cost::Low => 0,
            Cost::Medium => 1,
            Cost::High => 2,
        }
}

/// The first five letters of each longer word, lower case.
fn stems(text: &str) -> BTreeSet<String> {
    let words = text
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| word.len() > 3);
    words
        .map(|word| word.chars().take(5).collect::<String>().to_lowercase())
        .collect()
}

/// Grant, availability and the special rules of each class.
fn check_entry(
    action: &Action,
    entry: &CatalogEntry,
    context: Context<'_>,
    at: &str,
    found: &mut Diagnostics,
) {
    let name = entry.carrier_name();
    if !entry.granted {
        found.add(Code::NotGranted, at, format!("`{name}` is not granted"));
    } else if !entry.available {
        let message = format!("`{name}` is not available now");
        found.add(Code::Unavailable, at, message);
    }
    match entry.kind {
        ExecutorKind::Agent => {
            if !entry.can_execute {
                let message = format!("`{name}` takes no work");
                found.add(Code::AgentNotDelegable, at, message);
            }
            let max = context.rules.limits.agent_depth;
            if context.known.depth >= max {
                let message = format!("delegation is {max} deep at most");
                found.add(Code::DepthExceeded, at, message);
            }
        }
        ExecutorKind::Human => {
            if !context.known.can_ask {
                let message = "this surface cannot ask a user";
                found.add(Code::InteractionUnavailable, at, message);
            // The run ends before the user answers.
            } else if !context.known.can_persist {
                let message = "a question outlives the run, and nothing can be stored here";
                found.add(Code::PersistUnavailable, at, message);
            }
        }
        ExecutorKind::Runtime if entry.name == "wait" => {
            let wait = action.input.get("ms").and_then(serde_json::Value::as_u64);
            let max = context.known.remaining_ms.saturating_sub(WAIT_MARGIN);
            // A durable graph may wait longer than its run.
            if wait.is_some_and(|wait| wait > max) && !context.known.can_persist {
                found.add(Code::WaitTooLong, at, format!("at most {max} ms are left"));
            }
        }
        _ => {}
    }
}

/// Form fields whose name or format asks for a secret.
fn check_form(action: &Action, input: &str, found: &mut Diagnostics) {
    let fields = action
        .input
        .get("fields")
        .and_then(|fields| fields.as_array());
    for (index, field) in fields.into_iter().flatten().enumerate() {
        let text = |key: &str| {
            field
                .get(key)
                .and_then(|name| name.as_str())
                .unwrap_or_default()
        };
        // Spellings such as `API-Key` count, too.
        let name = text("name").to_lowercase().replace(['-', ' '], "_");
        let is_secret = SECRETS.iter().any(|word| name.contains(word));
        if is_secret || text("format") == "password" {
            let at = format!("{}/{input}/fields/{index}", action.pointer);
            let message = format!("`{name}` asks for a secret");
            found.add(Code::SecretInForm, at, message);
        }
    }
}
