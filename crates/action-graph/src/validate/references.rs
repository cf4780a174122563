//! References: which exist, which are known already, and which edges they add.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::action::{Action, Condition, ForEach, Rest};
use crate::bind::{self, BindingToken};
use crate::code::Code;
use crate::declaration::{Declaration, Payload, ReportBody};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::ids::ActionId;
use crate::reference::{Reference, ResultPart};
use crate::rules::KnownAction;
use crate::sections::USER_VISIBLE;
use crate::validate::context::{Context, fields, started_actions};

/// The place of a reference decides which kinds it may have.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    Input { has_items: bool },
    Text,
    Condition,
    Until,
    Items,
}

/// An edge that a reference makes.
struct Edge {
    on: ActionId,
    at: String,
    /// True if the other action must succeed, not only end.
    must_succeed: bool,
}

struct ReferenceGate<'a> {
    draft: &'a Declaration,
    context: Context<'a>,
    local: BTreeSet<&'a ActionId>,
    constants: &'a mut BTreeMap<Reference, Value>,
    used_sections: BTreeSet<String>,
    found: &'a mut Diagnostics,
}

pub(super) fn check(
    draft: &mut Declaration,
    context: Context<'_>,
    constants: &mut BTreeMap<Reference, Value>,
    found: &mut Diagnostics,
) {
    let mut local: BTreeSet<_> = draft.actions().iter().map(|action| &action.id).collect();
    local.extend(started_actions(draft, context.known));
    let mut gate = ReferenceGate {
        draft,
        context,
        local,
        constants,
        used_sections: BTreeSet::from([USER_VISIBLE.to_owned()]),
        found,
    };
    let edges: Vec<_> = draft
        .actions()
        .iter()
        .map(|action| gate.action(action))
        .collect();
    gate.payload();
    let unused = draft
        .source
        .sections
        .keys()
        .filter(|id| !gate.used_sections.contains(*id));
    for id in unused {
        let message = format!("section `{id}` is not referred to");
        gate.found.add(Code::SectionUnused, "", message);
    }
    for (action, edges) in draft.actions_mut().iter_mut().zip(edges) {
        add_edges(action, edges, found);
    }
}

fn add_edges(action: &mut Action, edges: Vec<Edge>, found: &mut Diagnostics) {
    for edge in edges {
        if edge.must_succeed && !action.depends_on.contains(&edge.on) {
            let message = format!("depends on `{}` by its data", edge.on);
            found.add(Code::EdgeAdded, edge.at, message);
            action.depends_on.push(edge.on);
        }
    }
}

impl ReferenceGate<'_> {
    fn action(&mut self, action: &Action) -> Vec<Edge> {
        let mut edges = Vec::new();
        let fields = fields(self.draft.source.origin);
        let at = format!("{}/{}", action.pointer, fields.input);
        let has_items = action.for_each.is_some();
        bind::visit_input(&action.input, &at, &mut |at, one| match one {
            BindingToken::Binding(_) if !self.context.rules.features.bind => {
                self.found
                    .add(Code::FeatureDisabled, at, "bindings are switched off");
            }
            BindingToken::Binding(reference) => {
                self.reference(&reference, at, Use::Input { has_items }, &mut edges);
            }
            BindingToken::Malformed(text) => {
                let shown: String = text.chars().take(80).collect();
                let message =
                    format!("`{shown}` is no binding: it takes only `$ref` and `default`");
                self.found.add(Code::BadReference, at, message);
            }
            BindingToken::Interpolated => {
                let message = "a reference is inside a text";
                self.found.add(Code::StringInterpolation, at, message);
            }
        });
        for (index, reference) in action.context_refs.iter().enumerate() {
            let at = format!("{}/context_refs/{index}", action.pointer);
            self.reference(reference, &at, Use::Text, &mut edges);
        }
        if let Some(reference) = &action.prompt_ref {
            let at = format!("{}/prompt_ref", action.pointer);
            self.reference(reference, &at, Use::Text, &mut edges);
        }
        if let Some(each) = &action.for_each {
            let at = format!("{}/for_each/items", action.pointer);
            self.reference(&each.items, &at, Use::Items, &mut edges);
            self.check_item_count(each, &at);
        }
        let until = action.repeat.as_ref().map(|repeat| &repeat.until);
        for (condition, name, position) in [
            (action.when.as_ref(), "when", Use::Condition),
            (until, "repeat/until", Use::Until),
        ] {
            let at = format!("{}/{name}", action.pointer);
            match condition {
                Some(Condition::Value { reference, .. }) => {
                    self.reference(reference, &format!("{at}/ref"), position, &mut edges);
                }
                Some(Condition::Ending { action: other, .. }) if !self.local.contains(other) => {
                    let message = format!("`{other}` is no action of this declaration");
                    self.found
                        .add(Code::UnknownActionRef, format!("{at}/action"), message);
                }
                _ => {}
            }
        }
        edges
    }

    fn check_item_count(&mut self, each: &ForEach, at: &str) {
        let max = usize::from(each.max);
        match self.constants.get(&each.items) {
            Some(Value::Array(list)) => {
                let from = usize::try_from(each.from).unwrap_or(usize::MAX);
                let items = list.len().saturating_sub(from);
                if items > max && each.rest == Rest::Refuse {
                    let message = format!("{items} items, at most {max}");
                    self.found.add(Code::FanOutTooLarge, at, message);
                }
            }
            None => {}
            Some(_) => self
                .found
                .add(Code::PointerType, at, "the value is no list"),
        }
    }

    fn payload(&mut self) {
        let mut edges = Vec::new();
        let (sections, at) = match &self.draft.payload {
            Payload::ActionGraph {
                report: Some(report),
                ..
            } => (&report.sections, "/payload/report"),
            Payload::FinalReportSpec(report) => (&report.sections, "/payload"),
            Payload::ExpandRef { refs } => {
                for (index, item) in refs.iter().enumerate() {
                    let at = format!("/payload/refs/{index}/ref");
                    match &item.reference {
                        Reference::Runtime { .. } => {
                            self.reference(&item.reference, &at, Use::Text, &mut edges);
                        }
                        Reference::Declaration(_) => {}
                        _ => self.found.add(
                            Code::BadReference,
                            at,
                            "only runtime:// can be expanded",
                        ),
                    }
                }
                return;
            }
            _ => return,
        };
        for (index, section) in sections.iter().enumerate() {
            if let ReportBody::Ref(reference) = &section.body {
                let at = format!("{at}/sections/{index}/ref");
                self.reference(reference, &at, Use::Text, &mut edges);
            }
        }
    }

    fn reference(&mut self, reference: &Reference, at: &str, position: Use, edges: &mut Vec<Edge>) {
        match reference {
            Reference::Section(id) => self.section(id, reference, at),
            Reference::Action { id, part, .. } => {
                if !self.local.contains(id) {
                    return self.foreign(id, *part, at);
                }
                let is_data = matches!(part, ResultPart::Output | ResultPart::Summary);
                edges.push(Edge {
                    on: id.clone(),
                    at: at.to_owned(),
                    must_succeed: is_data && !matches!(position, Use::Condition | Use::Until),
                });
            }
            Reference::Goal => {
                let goal = Value::from(self.context.known.goal.as_str());
                self.constants.insert(reference.clone(), goal);
            }
            Reference::Event(pointer) => {
                let event = &self.context.known.event;
                self.part_of(event, pointer, reference, at);
            }
            Reference::Runtime { .. } => self.stored(reference, at),
            Reference::Declaration(_) => {
                let message = "a declaration can be expanded, and is no value";
                self.found.add(Code::BadReference, at, message);
            }
            Reference::Artifact(_) => {}
            Reference::Item(_) if position == Use::Input { has_items: true } => {}
            Reference::Item(_) => {
                let message = "`item` has a value only inside the input of for_each";
                self.found.add(Code::BadReference, at, message);
            }
            Reference::Own(_) if position == Use::Until => {}
            Reference::Own(_) => {
                let message = "`own` has a value only in repeat.until";
                self.found.add(Code::BadReference, at, message);
            }
        }
    }

    fn section(&mut self, id: &str, reference: &Reference, at: &str) {
        let id = id.to_lowercase();
        if let Some(section) = self.draft.source.sections.get(&id) {
            let text = Value::from(section.text.as_str());
            self.constants.insert(reference.clone(), text);
        } else {
            let sections = self.draft.source.sections.keys().cloned();
            let message = format!("there is no section `{id}`");
            self.found
                .push(Diagnostic::new(Code::UnknownSection, at, message).allow(sections));
        }
        self.used_sections.insert(id);
    }

    /// An action outside of the declaration: unfinished, finished or unknown.
    fn foreign(&mut self, id: &ActionId, part: ResultPart, at: &str) {
        let part = match part {
            ResultPart::Summary => "summary",
            ResultPart::Output => "output",
            ResultPart::Error => "error",
            ResultPart::Status => "status",
        };
        match self.context.known.action(id) {
            Some((graph, _)) if graph.open => {
                let message = format!("`{id}` belongs to `{}`, which is not finished", graph.id);
                self.found.add(Code::RefNotUpstream, at, message);
            }
            Some((graph, _)) => {
                let hint = format!("refer to runtime://runs/{}/actions/{id}/{part}", graph.id);
                let message = format!("`{id}` is no action of this declaration");
                self.found
                    .push(Diagnostic::new(Code::UnknownActionRef, at, message).hint(hint));
            }
            None => {
                let local = self.local.iter().map(|id| id.0.clone());
                let message = format!("`{id}` is no action");
                self.found
                    .push(Diagnostic::new(Code::UnknownActionRef, at, message).allow(local));
            }
        }
    }

    /// A result of an earlier graph of the conversation.
    fn stored(&mut self, reference: &Reference, at: &str) {
        let Reference::Runtime {
            graph,
            action,
            part,
            pointer,
        } = reference
        else {
            return;
        };
        let Some(graph) = self.context.known.graph(graph) else {
            let message = format!("`{graph}` is no run of this conversation");
            return self.found.add(Code::RefForbidden, at, message);
        };
        if graph.expired {
            let message = format!("results of `{}` are gone", graph.id);
            return self.found.add(Code::RefExpired, at, message);
        }
        let Some(id) = action else {
            let lines = graph
                .actions
                .iter()
                .map(|(id, one)| format!("{id}: {}", one.summary));
            let text = lines.collect::<Vec<_>>().join("\n");
            self.constants.insert(reference.clone(), text.into());
            return;
        };
        let Some(action) = graph.actions.get(id) else {
            let ids = graph.actions.keys().map(|id| id.0.clone());
            let message = format!("`{id}` is no action of `{}`", graph.id);
            self.found
                .push(Diagnostic::new(Code::UnknownActionRef, at, message).allow(ids));
            return;
        };
        if action.private && *part != ResultPart::Status {
            let message = format!("the result of `{id}` is private");
            return self.found.add(Code::RefForbidden, at, message);
        }
        if graph.open && action.output.is_none() && *part == ResultPart::Output {
            let message = format!("`{id}` of `{}` has no result yet", graph.id);
            return self.found.add(Code::RefNotUpstream, at, message);
        }
        let value = stored_part(action, *part);
        self.part_of(&value, pointer, reference, at);
    }

    /// Stores the value at a pointer as a constant, or reports the fault.
    fn part_of(&mut self, value: &Value, pointer: &str, reference: &Reference, at: &str) {
        let max = self.context.rules.limits.reference_bytes;
        match value.pointer(pointer) {
            Some(part) if size_of(part) > max => {
                let message = format!("the value exceeds {max} bytes");
                self.found.add(Code::RefTooLarge, at, message);
            }
            Some(part) => {
                self.constants.insert(reference.clone(), part.clone());
            }
            None if value.is_string() => {
                let message = "the value is text, which has no places";
                self.found.add(Code::PointerType, at, message);
            }
            None => {
                let message = format!("there is nothing at `{pointer}`");
                self.found.add(Code::PointerMissing, at, message);
            }
        }
    }
}

fn stored_part(action: &KnownAction, part: ResultPart) -> Value {
    match part {
        ResultPart::Summary => action.summary.as_str().into(),
        ResultPart::Output => match &action.output {
            Some(output) => output.clone(),
            None => action.summary.as_str().into(),
        },
        ResultPart::Error => action.error.clone().map_or(Value::Null, Value::from),
        ResultPart::Status => action.status.as_str().into(),
    }
}

fn size_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        other => other.to_string().len(),
    }
}
