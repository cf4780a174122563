//! Graphs of programs: an event of type `graph.run` carries the declaration, without a model.

use action_graph::accept::{OutputVerdict, accept};
use action_graph::declaration::{DeclarationForm, Intent, ReportBody, ReportSection, ReportSpec};
use action_graph::diagnostic::Diagnostic;
use action_graph::graph::{Graph, GraphStatus};
use action_graph::output::ModelOutput;
use action_graph::reference::{Reference, ResultPart};
use action_graph::report::render_report;
use action_graph::rules::{AgentRules, CarrierMode, PlainText};
use action_graph::transcript::TranscriptTurn;
use action_graph::validate::{AcceptedDeclaration, Context};
use protocol::context::AgentRunContext;
use protocol::result::RunOutcome;
use serde_json::{Map, Value};

use crate::ending::SessionEnd;
use crate::failure::{DECLARATION_INVALID, Halt, RECORDS, RunFailure};
use crate::host::GraphAgentHost;
use crate::live::{GraphWait, LiveGraph};
use crate::session::ProtocolSession;

/// Event type of declarations by programs.
pub(crate) const GRAPH_RUN: &str = "graph.run";
/// Member of the event's data with the declaration.
const DECLARATION: &str = "declaration";
/// Maximum faults in a failure message.
const NAMED: usize = 8;

/// True if the event needs no model: a declaration, or the answer to a question.
pub(crate) fn needs_no_model(context: &AgentRunContext) -> bool {
    context.event.event_type == GRAPH_RUN || context.input.interaction.is_some()
}

/// Declaration of the event; `None` for other event types.
pub(crate) fn declared(
    context: &AgentRunContext,
) -> Option<Result<&Map<String, Value>, RunFailure>> {
    if context.event.event_type != GRAPH_RUN {
        return None;
    }
    let declaration = context.event.data.get(DECLARATION);
    let declaration = declaration.and_then(Value::as_object);
    let missing = "/data/declaration must be an object: the full form of a declaration, or arguments of AgentProtocolOutput";
    Some(declaration.ok_or_else(|| RunFailure::new(DECLARATION_INVALID, missing)))
}

/// Declaration as a model output, and its carrier. Programs and models share the same parser and checks.
fn output_of(declaration: &Map<String, Value>) -> (ModelOutput, CarrierMode) {
    let text = Value::Object(declaration.clone()).to_string();
    if declaration.contains_key("kind") {
        return (ModelOutput::carrier(text), CarrierMode::Flat);
    }
    let block = format!("```json agent-protocol\n{text}\n```\n");
    (ModelOutput::text(&block), CarrierMode::Fenced)
}

fn is_of_program(live: &LiveGraph) -> bool {
    live.graph.info.origin == DeclarationForm::Injected
}

/// Opens the graph of a program's declaration. Fails the run if no graph results.
pub(crate) async fn begin(
    session: &mut ProtocolSession<impl GraphAgentHost>,
    declaration: &Map<String, Value>,
) -> Result<(), Halt> {
    let (output, carrier) = output_of(declaration);
    let raw = output.raw();
    let max_open = session.driver.rules.limits.open_graphs;
    session.driver.graphs.evict_graphs(max_open).await;
    let facts = session.facts(&raw).await?;
    let rules = AgentRules {
        carrier,
        // Text without a declaration is a fault of the program, not an answer.
        plain_text: PlainText::Repair,
        ..session.driver.rules.clone()
    };
    let context = Context {
        catalog: &session.driver.graphs.env.catalog,
        known: &facts,
        rules: &rules,
    };
    let mut accepted = accepted(accept(&output, context)).map_err(Halt::Failed)?;
    accepted.declaration.source.origin = DeclarationForm::Injected;
    session.declarations += 1;
    session.open(accepted, &raw, &facts).await?;
    let mut graphs = session.driver.graphs.live_graphs.iter();
    if graphs.any(|live| is_of_program(live) && !live.is_closed) {
        return Ok(());
    }
    // `open` reports refusals as notices for a model; without one, the notice is the failure.
    let why = match session.transcript.turns.last() {
        Some(TranscriptTurn::Notice(notice)) => notice.sentence.clone(),
        _ => "the graph was not made".to_owned(),
    };
    Err(Halt::Failed(RunFailure::new(RECORDS, why).retryable()))
}

/// Ends a run in which only graphs of programs need the model. `None`: the model decides.
pub(crate) async fn end(session: &mut ProtocolSession<impl GraphAgentHost>) -> Option<SessionEnd> {
    let own = session
        .transcript
        .turns
        .iter()
        .skip(session.transcript.earlier);
    let has_request = own
        .into_iter()
        .any(|turn| matches!(turn, TranscriptTurn::User { .. }));
    let graphs = &session.driver.graphs.live_graphs;
    let mut ended = graphs.iter().filter(|live| live.need() == GraphWait::Model);
    let newest = ended.clone().next_back()?;
    // Steering input of the user needs an answer of the model.
    if has_request || !ended.all(is_of_program) {
        return None;
    }
    if let Some(text) = results_of(&newest.graph) {
        return Some(session.answer(&text, RunOutcome::Ok).await);
    }
    let graphs = &session.driver.graphs;
    let text = graphs.progress("The graph did not complete.");
    Some(session.answer(&text, RunOutcome::NotDone).await)
}

fn accepted(verdict: OutputVerdict) -> Result<AcceptedDeclaration, RunFailure> {
    let invalid = |message: String| Err(RunFailure::new(DECLARATION_INVALID, message));
    match verdict {
        OutputVerdict::Accepted(accepted)
            if accepted.declaration.makes_graph()
                && accepted.declaration.intent == Intent::Execute =>
        {
            Ok(*accepted)
        }
        OutputVerdict::Repair(repair) => {
            let faults = repair.diagnostics.iter().filter(|one| one.is_error());
            let faults: Vec<_> = faults.take(NAMED).map(fault).collect();
            invalid(faults.join("; "))
        }
        OutputVerdict::Accepted(_) | OutputVerdict::Content(_) => invalid(
            "/data/declaration declares no graph: use the intent `execute` with a payload `action_graph`, or the kind `act`"
                .to_owned(),
        ),
    }
}

/// Fault with its JSON pointer into the event.
fn fault(one: &Diagnostic) -> String {
    format!(
        "/data/{DECLARATION}{} {}: {}",
        one.pointer,
        one.code,
        one.line()
    )
}

/// Results of the final actions of a completed graph; `None` for other graphs.
fn results_of(graph: &Graph) -> Option<String> {
    if graph.aggregate() != GraphStatus::Completed {
        return None;
    }
    let is_last = |id| {
        graph
            .declared()
            .all(|other| !other.action.depends_on.contains(id))
    };
    let last: Vec<_> = graph
        .declared()
        .filter(|node| is_last(&node.action.id))
        .collect();
    let has_headings = last.len() > 1;
    let sections = last.into_iter().map(|node| ReportSection {
        heading: if has_headings {
            node.action.title.clone()
        } else {
            String::new()
        },
        body: ReportBody::Ref(Reference::Action {
            id: node.action.id.clone(),
            part: ResultPart::Output,
            pointer: String::new(),
        }),
        // Skipped actions have no output.
        optional: true,
    });
    let spec = ReportSpec {
        title: String::new(),
        sections: sections.collect(),
        footer: String::new(),
    };
    let text = render_report(graph, &spec).unwrap_or_default();
    Some(if text.trim().is_empty() {
        "The graph has completed.".to_owned()
    } else {
        text
    })
}
