//! Recovery of loose outputs: direct calls and calls written as text, where intent is clear and rules allow it.

use serde_json::{Map, Value};

use crate::action::{Action, Class, Executor, ExecutorKind};
use crate::catalog::CatalogEntry;
use crate::code::Code;
use crate::declaration::{Declaration, DeclarationForm, Intent, Payload};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::json;
use crate::output::NativeCall;
use crate::policy::Return;
use crate::schema;
use crate::textual::TextCall;
use crate::validate::Context;

/// Calls that are recovered at most.
const MAX_CALLS: usize = 8;

/// Direct native calls: each to a granted tool with known, harmless effects, or all to named agents.
pub(crate) fn direct(
    calls: &[NativeCall],
    context: Context<'_>,
    found: &mut Diagnostics,
) -> Option<Declaration> {
    if calls.len() > MAX_CALLS {
        let message = format!("more than {MAX_CALLS} direct calls");
        found.add(Code::RecoveryRefused, "", message);
        return None;
    }
    // All calls are checked, so that each fault is reported.
    let mut draft = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        let at = format!("/calls/{index}");
        draft.push(one(call, &at, context, found));
    }
    // A part of the calls must not run without the others.
    let draft: Vec<(Code, Action)> = draft.into_iter().collect::<Option<_>>().or_else(|| {
        let message = "direct calls are not clear enough to run";
        found.add(Code::RecoveryRefused, "", message);
        None
    })?;
    let code = draft[0].0;
    // One kind only: the record names one form of recovery.
    if draft.iter().any(|(other, _)| *other != code) {
        let message = "calls of tools and agents are mixed";
        found.add(Code::RecoveryRefused, "", message);
        return None;
    }
    let message = format!("{} direct calls are read as a declaration", draft.len());
    found.add(code, "", message);
    let origin = match code {
        Code::RecoveredDelegation => DeclarationForm::RecoveredDelegation,
        _ => DeclarationForm::RecoveredTool,
    };
    Some(declaration(
        draft.into_iter().map(|(_, action)| action),
        origin,
    ))
}

/// The same calls without any check, to find their schemas.
pub(crate) fn draft_of(calls: &[NativeCall], context: Context<'_>) -> Declaration {
    let actions = calls.iter().take(MAX_CALLS).filter_map(|call| {
        let entry = find(&call.name, context)?;
        Some(Action::new(
            "recovered",
            Executor::named(entry.kind, &entry.name),
        ))
    });
    declaration(actions, DeclarationForm::RecoveredTool)
}

fn declaration(actions: impl Iterator<Item = Action>, origin: DeclarationForm) -> Declaration {
    // Native calls carry no ids of actions.
    let mut actions: Vec<_> = actions.collect();
    for (index, action) in actions.iter_mut().enumerate() {
        action.id = format!("recovered_{}", index + 1).as_str().into();
        action.title = action.operation.clone();
        action.description = action.operation.clone();
        action.result = Some(Return::Summary.into());
        action.pointer = format!("/calls/{index}");
    }
    let payload = Payload::ActionGraph {
        actions,
        report: None,
    };
    let mut declaration = Declaration::new(Intent::Execute, payload);
    declaration.source.origin = origin;
    declaration
}

/// A tool or an agent of this name.
fn find<'a>(name: &str, context: Context<'a>) -> Option<&'a CatalogEntry> {
    let tool = context.catalog.find(ExecutorKind::Tool, name);
    tool.or_else(|| context.catalog.find(ExecutorKind::Agent, name))
}

fn one(
    call: &NativeCall,
    at: &str,
    context: Context<'_>,
    found: &mut Diagnostics,
) -> Option<(Code, Action)> {
    // Cut: the name goes into messages.
    let name: String = call.name.chars().take(64).collect();
    let parsed = json::parse(&call.arguments, context.rules.limits.json_depth);
    let arguments = match parsed {
        Ok(Value::Object(arguments)) => arguments,
        Ok(_) => {
            let message = "the arguments are no object";
            found.add(Code::ArgsNotObject, format!("{at}/args"), message);
            return None;
        }
        Err(fault) => {
            found.add(
                fault.code,
                format!("{at}/args{}", fault.pointer),
                fault.message,
            );
            return None;
        }
    };
    // `task` is the usual name of a delegation tool in other agents.
    if name == "task" {
        return delegation(arguments, at, context, found);
    }
    let Some(entry) = find(&name, context) else {
        let names = context
            .catalog
            .of_kind(ExecutorKind::Tool)
            .filter(|entry| entry.granted);
        let diagnostic = Diagnostic::new(
            Code::UnknownTool,
            format!("{at}/name"),
            format!("there is no tool `{name}`"),
        );
        found.push(diagnostic.allow(names.map(|entry| entry.name.clone())));
        return None;
    };
    // An agent's name used as a tool is a delegation to it.
    if entry.kind == ExecutorKind::Agent {
        let mut arguments = arguments;
        arguments.insert("agent".to_owned(), name.into());
        return delegation(arguments, at, context, found);
    }
    is_recoverable(entry, &arguments, at, context, found).then(|| {
        let mut action = Action::new(
            "recovered",
            Executor::named(ExecutorKind::Tool, &entry.name),
        );
        action.operation.clone_from(&entry.name);
        action.input = arguments;
        (Code::RecoveredDirectTool, action)
    })
}

fn is_recoverable(
    entry: &CatalogEntry,
    arguments: &Map<String, Value>,
    at: &str,
    context: Context<'_>,
    found: &mut Diagnostics,
) -> bool {
    // All faults are collected, so that one repair is enough.
    let mut is_clear = true;
    if !entry.granted {
        let message = format!("`{}` is not granted", entry.name);
        found.add(Code::NotGranted, format!("{at}/name"), message);
        is_clear = false;
    }
    // Unknown effects are never recovered: the call could change something.
    if entry.effects.is_empty() {
        let message = format!("the effects of `{}` are not known", entry.name);
        found.add(Code::EffectsUnknown, at, message);
        is_clear = false;
    } else if !entry.effects.is_subset(&context.rules.recovery.tools) {
        let message = format!("`{}` does more than direct calls may", entry.name);
        found.add(Code::RecoveryRefused, at, message);
        is_clear = false;
    }
    let input = Value::Object(arguments.clone());
    // Without bindings: a direct call is run as it is.
    for violation in schema::check(&entry.schema, &input) {
        found.add(
            Code::ArgsSchema,
            format!("{at}/args{}", violation.pointer),
            violation.message,
        );
        is_clear = false;
    }
    is_clear
}

fn delegation(
    mut arguments: Map<String, Value>,
    at: &str,
    context: Context<'_>,
    found: &mut Diagnostics,
) -> Option<(Code, Action)> {
    let text = |arguments: &Map<String, Value>, key: &str| {
        arguments
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let agent = text(&arguments, "agent");
    let is_registered = context.catalog.find(ExecutorKind::Agent, &agent).is_some();
    if !context.rules.recovery.delegation
        || !is_registered
        || text(&arguments, "prompt").trim().is_empty()
    {
        let message =
            "a direct delegation needs a known agent, a prompt, and a rule that allows it";
        found.add(Code::RecoveryRefused, at, message);
        return None;
    }
    arguments.remove("agent");
    // The name of the agent is the executor, not an argument.
    let mut action = Action::new("recovered", Executor::named(ExecutorKind::Agent, &agent));
    action.operation = agent;
    action.input = arguments;
    Some((Code::RecoveredDelegation, action))
}

/// A call written as text: exactly one, explicit, replayable, and allowed by the rules.
pub(crate) fn textual(
    calls: &[TextCall],
    context: Context<'_>,
    found: &mut Diagnostics,
) -> Option<Declaration> {
    let refuse = |found: &mut Diagnostics, message: &str| {
        found.add(Code::RecoveryRefused, "", message);
        None
    };
    if !context.rules.recovery.text {
        return refuse(found, "a call written as text is not run");
    }
    // Several written calls are not explicit enough to run.
    let [call] = calls else {
        return refuse(found, "several calls are written as text");
    };
    let (Some(name), Some(arguments)) = (&call.name, &call.arguments) else {
        return refuse(
            found,
            "name or arguments of the written call are not explicit",
        );
    };
    let Some(entry) = context.catalog.find(ExecutorKind::Tool, name) else {
        return refuse(found, "the written call names no tool");
    };
    if !is_recoverable(entry, arguments, "/calls/0", context, found)
        // A text may only quote a call, so it must be harmless to repeat.
        || Class::of(&entry.effects, entry.idempotency) != Class::Replayable
    {
        return refuse(found, "the written call may change something");
    }
    let message = "a call written as text is read as a declaration";
    found.add(Code::RecoveredText, "", message);
    let mut action = Action::new("recovered", Executor::named(ExecutorKind::Tool, name));
    action.operation.clone_from(name);
    action.input.clone_from(arguments);
    Some(declaration(
        std::iter::once(action),
        DeclarationForm::RecoveredText,
    ))
}
