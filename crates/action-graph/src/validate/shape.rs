//! Ids, features, policies and the base of a revision.

use std::collections::BTreeSet;

use crate::code::Code;
use crate::declaration::{Declaration, DeclarationForm, Intent, Payload};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::policy::{ENFORCED, Policies};
use crate::validate::context::{Context, started_actions};

pub(super) fn check(draft: &mut Declaration, context: Context<'_>, found: &mut Diagnostics) {
    let mut seen = BTreeSet::new();
    for action in draft.actions() {
        if !action.id.as_str().is_empty() && !seen.insert(&action.id) {
            let at = format!("{}/id", action.pointer);
            let message = format!("`{}` occurs twice", action.id);
            found.add(Code::DuplicateId, at, message);
        }
    }
    let started: BTreeSet<_> = started_actions(draft, context.known).collect();
    for action in draft
        .actions()
        .iter()
        .filter(|one| started.contains(&one.id))
    {
        let at = format!("{}/id", action.pointer);
        let message = format!("`{}` has started", action.id);
        found.add(Code::DuplicateId, at, message);
    }
    check_features(draft, context, found);
    check_base(draft, context, found);
    check_policies(&draft.policies, "", found);
    for action in draft.actions() {
        check_policies(&action.policies, &action.pointer, found);
    }
    if draft.source.origin == DeclarationForm::Fenced {
        check_recommended(draft, found);
    }
}

fn check_features(draft: &Declaration, context: Context<'_>, found: &mut Diagnostics) {
    let features = &context.rules.features;
    for action in draft.actions() {
        let used = [
            ("when", action.when.is_some(), features.when),
            ("for_each", action.for_each.is_some(), features.for_each),
            ("repeat", action.repeat.is_some(), features.repeat),
        ];
        for (name, is_used, is_on) in used {
            if is_used && !is_on {
                let at = format!("{}/{name}", action.pointer);
                let message = format!("`{name}` is switched off");
                found.add(Code::FeatureDisabled, at, message);
            }
        }
    }
    let has_report = match &draft.payload {
        Payload::ActionGraph { report, .. } => report.is_some(),
        Payload::FinalReportSpec(_) => true,
        _ => false,
    };
    if has_report && !features.report {
        let message = "reports are switched off";
        found.add(Code::FeatureDisabled, "/payload/report", message);
    }
}

/// A revision needs an open graph; decisions name one, too.
fn check_base(draft: &Declaration, context: Context<'_>, found: &mut Diagnostics) {
    let (graph, at) = match (&draft.payload, draft.intent) {
        (_, Intent::Revise) => (draft.base.as_ref(), "/base"),
        (Payload::Decision(decision), _) => (Some(&decision.graph), "/payload/graph"),
        _ => return,
    };
    let target = graph.and_then(|graph| context.known.graph(graph));
    if !target.is_some_and(|graph| graph.open) {
        let open = context.known.graphs.iter().filter(|graph| graph.open);
        let open = open.map(|graph| graph.id.0.clone());
        let diagnostic = Diagnostic::new(Code::UnknownBase, at, "no open graph has this run_id");
        found.push(diagnostic.allow(open));
        return;
    }
    if let (Payload::Decision(decision), Some(graph)) = (&draft.payload, target)
        && let Some(action) = &decision.action
        && !graph.actions.contains_key(action)
    {
        let message = format!("`{action}` is no action of `{}`", graph.id);
        let diagnostic = Diagnostic::new(Code::UnknownActionRef, "/payload/action", message);
        found.push(diagnostic.allow(graph.actions.keys().map(|id| id.0.clone())));
    }
}

fn check_policies(policies: &Policies, at: &str, found: &mut Diagnostics) {
    for name in policies.named.keys() {
        if !ENFORCED.contains(&name.as_str()) {
            let message = format!("`{name}` is kept, not acted on");
            found.add(Code::UnsupportedPolicy, format!("{at}/{name}"), message);
        }
    }
}

/// The title of the full form, which users see.
fn check_recommended(draft: &Declaration, found: &mut Diagnostics) {
    if draft.title.trim().is_empty() && draft.makes_graph() {
        found.add(Code::TitleMissing, "/title", "the declaration has no title");
    }
}
