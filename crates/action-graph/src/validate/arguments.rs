//! Arguments against the schema of their executor, before and after binding.

use serde_json::{Map, Value};

use crate::action::{Action, ExecutorKind};
use crate::catalog::Catalog;
use crate::code::Code;
use crate::declaration::Declaration;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::json;
use crate::schema::{self, check_with_bindings};
use crate::validate::context::{Context, fields};

pub(super) fn check(draft: &Declaration, context: Context<'_>, found: &mut Diagnostics) {
    let fields = fields(draft.source.origin);
    for action in draft.actions() {
        let at = format!("{}/{}", action.pointer, fields.input);
        let input = Value::Object(action.input.clone());
        let max = context.rules.limits.args_bytes;
        if json::size_of(&action.input) > max {
            let message = format!("the arguments exceed {max} bytes");
            found.add(Code::ArgsTooLarge, at.clone(), message);
        }
        for violation in violations(action, &input, context.catalog, check_with_bindings) {
            let at = format!("{at}{}", violation.pointer);
            found.add(Code::ArgsSchema, at, violation.message);
        }
    }
}

fn violations(
    action: &Action,
    input: &Value,
    catalog: &Catalog,
    check: fn(&Value, &Value) -> Vec<schema::Violation>,
) -> Vec<schema::Violation> {
    let Some(resolved) = &action.resolved else {
        return Vec::new();
    };
    let entry = catalog.find(resolved.kind, &resolved.target);
    let schema = entry.map(|entry| &entry.schema);
    // The task of an agent may be only in its title, description or prompt.
    let is_free =
        resolved.kind == ExecutorKind::Agent && input.as_object().is_some_and(Map::is_empty);
    match schema {
        Some(schema) if !is_free => check(schema, input),
        _ => Vec::new(),
    }
}

/// Checks the new input of a retry (`GraphDecision::input`) before
/// [`GraphEvent::Decide`](crate::schedule::GraphEvent::Decide): bindings count as values of any type.
pub fn check_input(
    action: &Action,
    input: &Map<String, Value>,
    catalog: &Catalog,
) -> Vec<Diagnostic> {
    let input = Value::Object(input.clone());
    as_diagnostics(
        action,
        violations(action, &input, catalog, check_with_bindings),
    )
}

/// The second check, of bound arguments, right before `Execute` is carried out. A fault becomes
/// `Finished(Err(args_schema))` with `sent: No`.
pub fn check_bound(action: &Action, input: &Value, catalog: &Catalog) -> Vec<Diagnostic> {
    as_diagnostics(action, violations(action, input, catalog, schema::check))
}

fn as_diagnostics(action: &Action, violations: Vec<schema::Violation>) -> Vec<Diagnostic> {
    let as_diagnostic = |one: schema::Violation| {
        let at = format!("{}/args{}", action.pointer, one.pointer);
        Diagnostic::new(Code::ArgsSchema, at, one.message)
    };
    violations.into_iter().map(as_diagnostic).collect()
}
