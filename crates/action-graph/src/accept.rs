//! The way from a model output to an accepted declaration, an answer or a repair.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::carrier;
use crate::code::{Code, Severity, ValidationStage};
use crate::declaration::{
    AcceptedDeclaration, CARRIER, Declaration, DeclarationForm, Intent, Payload,
};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::fenced;
use crate::output::{Classified, ModelOutput, classify};
use crate::recover;
use crate::rules::{CarrierMode, PlainText};
use crate::validate::{Context, validate};
use secrets::digest::sha256_hex;

/// Result of judging a model output.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputVerdict {
    /// The agent declares nothing: the text is ordinary content.
    Content(String),
    /// A declaration, an answer or an end. Nothing has run yet.
    Accepted(Box<AcceptedDeclaration>),
    /// Nothing runs; the next model call carries the reasons, or the run fails.
    Repair(Box<Repair>),
}

/// A refused output.
#[derive(Clone, Debug, PartialEq)]
pub struct Repair {
    /// Faults for the notice, errors first, at most 8.
    pub diagnostics: Vec<Diagnostic>,
    /// Schemas of tools whose arguments failed.
    pub schemas: Vec<(String, Value)>,
    /// Text that can serve as an answer once repairs are used up.
    pub plain: Option<String>,
    /// The output for inspection, at most 64 KiB; never replayed.
    pub raw: String,
}

/// Protocol conformance of an output, for metrics by model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Adherence {
    /// The agent declares nothing.
    Content,
    /// A declaration in the requested form.
    Declared,
    /// A declaration that was recovered, by its code.
    Recovered(Code),
    /// Plain text taken as an answer.
    Plain,
    /// A refusal, by its first error.
    Refused(Code),
}

impl OutputVerdict {
    /// Protocol conformance of the output.
    pub fn adherence(&self) -> Adherence {
        match self {
            Self::Content(_) => Adherence::Content,
            Self::Accepted(accepted) => {
                let codes = accepted.diagnostics.iter().map(|one| one.code);
                match codes
                    .into_iter()
                    .find(|code| code.stage() == ValidationStage::Recovery)
                {
                    Some(Code::PlainAnswer) => Adherence::Plain,
                    Some(code) => Adherence::Recovered(code),
                    None => Adherence::Declared,
                }
            }
            Self::Repair(repair) => {
                let first = repair.diagnostics.first();
                Adherence::Refused(first.map_or(Code::NoDeclaration, |one| one.code))
            }
        }
    }
}

/// Repairs that are left, per model turn and per run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairBudget {
    turn: u8,
    run: u8,
}

/// Next step after a refused output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AfterRefusal {
    /// Ask the model once more, with a notice.
    Repair,
    /// Answer with the text that came along.
    Answer(String),
    /// Fail the run as `runner.protocol`, retryable.
    Fail,
}

impl Default for RepairBudget {
    fn default() -> Self {
        Self { turn: 2, run: 6 }
    }
}

impl RepairBudget {
    /// Begins a model turn after an accepted output.
    pub fn next_turn(&mut self) {
        self.turn = Self::default().turn;
    }

    /// Spends a repair, or decides without one.
    pub fn refuse(&mut self, repair: &Repair) -> AfterRefusal {
        if self.turn > 0 && self.run > 0 {
            self.turn -= 1;
            self.run -= 1;
            return AfterRefusal::Repair;
        }
        match &repair.plain {
            Some(text) => AfterRefusal::Answer(text.clone()),
            None => AfterRefusal::Fail,
        }
    }
}

/// Judges a complete model output.
pub fn accept(output: &ModelOutput, context: Context<'_>) -> OutputVerdict {
    // Agents without the protocol get their text unchanged, even if it looks like a declaration.
    if !context.rules.enabled {
        return OutputVerdict::Content(output.text.clone());
    }
    let mut found = Diagnostics::default();
    let limits = &context.rules.limits;
    let draft = match classify(output) {
        Classified::Carrier(arguments) => carrier::read(arguments, limits, &mut found),
        Classified::Fenced(block) => {
            let draft = fenced::read(block, limits, &mut found);
            // A block in place of the carrier is clear enough to run; the code counts how often models do that.
            if context.rules.carrier != CarrierMode::Fenced {
                let message = "a block is read where the carrier belongs";
                found.add(Code::RecoveredText, "", message);
            }
            draft
        }
        Classified::Plain(text) => plain(text, context, &mut found),
        Classified::Direct(calls) => recover::direct(calls, context, &mut found),
        Classified::Textual(calls) => recover::textual(&calls, context, &mut found),
        Classified::Broken(code) => refused(code, &mut found),
        Classified::Cut => refused(Code::IncompleteOutput, &mut found),
        Classified::Empty => refused(Code::NoDeclaration, &mut found),
    };
    let Some(mut draft) = draft else {
        // Nothing runs: faults of the reader and of recovery are reported before any gate.
        return repair(output, found.finish(limits.diagnostics), context);
    };
    // Before validation, because the accepted declaration carries the hash of the raw output.
    draft.source.raw_sha256 = sha256_hex(output.raw());
    match validate(draft, found, context) {
        Ok(accepted) => OutputVerdict::Accepted(Box::new(accepted)),
        Err(faults) => repair(output, faults, context),
    }
}

/// Validates a declaration that the runtime or a workflow made.
pub fn accept_draft(
    draft: Declaration,
    context: Context<'_>,
) -> Result<AcceptedDeclaration, Vec<Diagnostic>> {
    // Workflows come from the operator, so they pass even if the model may not declare.
    if !context.rules.enabled && draft.source.origin != DeclarationForm::Workflow {
        let disabled = Diagnostic::new(Code::ProtocolDisabled, "", "this agent declares nothing");
        return Err(vec![disabled]);
    }
    validate(draft, Diagnostics::default(), context)
}

fn refused(code: Code, found: &mut Diagnostics) -> Option<Declaration> {
    let message = match code {
        Code::IncompleteOutput => "the output was cut off",
        Code::NoDeclaration => "the output holds no declaration",
        Code::UnclosedFence => "the block has no end",
        Code::MixedCarriers => "the declaration is next to other calls or blocks",
        _ => "the output holds several declarations",
    };
    found.add(code, "", message);
    None
}

fn plain(text: &str, context: Context<'_>, found: &mut Diagnostics) -> Option<Declaration> {
    // Some agents must declare: then even an answer needs the carrier.
    if context.rules.plain_text == PlainText::Repair {
        let message = "the output is text without a declaration";
        found.add(Code::NoDeclaration, "", message);
        return None;
    }
    found.add(Code::PlainAnswer, "", "the text is taken as the answer");
    let text = text.to_owned();
    let payload = Payload::Message { text: text.clone() };
    let mut draft = Declaration::new(Intent::Respond, payload);
    // A plain answer has no separate note: the text is both message and payload.
    draft.message = text;
    draft.source.origin = DeclarationForm::Plain;
    Some(draft)
}

fn repair(output: &ModelOutput, faults: Vec<Diagnostic>, context: Context<'_>) -> OutputVerdict {
    let limits = &context.rules.limits;
    let schemas = failed_schemas(output, &faults, context);
    let mut diagnostics = faults;
    // Stable sort: errors first, each group in the order of positions.
    diagnostics.sort_by_key(|one| one.level != Severity::Error);
    diagnostics.truncate(limits.notice_diagnostics);
    // Text next to a carrier call can serve as the answer.
    let is_plain = matches!(classify(output), Classified::Plain(_))
        || output.calls.iter().any(|call| call.name == CARRIER) && !output.text.trim().is_empty();
    // The raw output is stored for inspection only, so a cut is harmless.
    let mut raw = output.raw();
    raw.truncate(raw.floor_char_boundary(limits.raw_bytes));
    OutputVerdict::Repair(Box::new(Repair {
        diagnostics,
        schemas,
        plain: is_plain.then(|| output.text.trim().to_owned()),
        raw,
    }))
}

/// Schemas of the tools whose arguments failed, by the names that the output gives them.
fn failed_schemas(
    output: &ModelOutput,
    faults: &[Diagnostic],
    context: Context<'_>,
) -> Vec<(String, Value)> {
    let is_schema = |one: &&Diagnostic| matches!(one.code, Code::ArgsSchema | Code::ArgsNotObject);
    let pointers: Vec<_> = faults
        .iter()
        .filter(is_schema)
        .map(|one| &one.pointer)
        .collect();
    // Most refusals need no schema: the second reading is skipped for them.
    if pointers.is_empty() {
        return Vec::new();
    }
    let mut found = Diagnostics::default();
    let limits = &context.rules.limits;
    // Read again without the gates: a refused draft is not kept.
    let draft = match classify(output) {
        Classified::Carrier(arguments) => carrier::read(arguments, limits, &mut found),
        Classified::Fenced(block) => fenced::read(block, limits, &mut found),
        Classified::Direct(calls) => Some(recover::draft_of(calls, context)),
        _ => None,
    };
    let mut names = BTreeSet::new();
    // Pointers of faults lie below the pointer of their action.
    for action in draft.iter().flat_map(Declaration::actions) {
        let prefix = format!("{}/", action.pointer);
        if pointers
            .iter()
            .any(|position| position.starts_with(&prefix))
        {
            names.extend(action.executor.kind.zip(action.executor.target.clone()));
        }
    }
    let entries = names
        .iter()
        .filter_map(|(kind, name)| context.catalog.find(*kind, name));
    entries
        // A schema of a tool that is not granted would reveal it.
        .filter(|entry| entry.granted)
        .map(|entry| (entry.carrier_name(), entry.schema.clone()))
        .collect()
}
