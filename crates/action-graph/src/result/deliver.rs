//! The model's view of one result, by its policy and within its cap.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::graph::Graph;
use crate::node::{Node, NodeState, SummarySource};
use crate::policy::{IfTruncated, ResultPolicy, Return, Visibility};
use crate::result::excerpt::{ExcerptEnds, excerpt, structured, tail_first};
use crate::result::summary::{summary_of, text_of};
use crate::result::tokens::{TokenCounter, clip_head, count_long};

/// Delivery of a result: forms, tokens and reason, for records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    /// Requested form.
    #[serde(rename = "asked")]
    pub requested: Return,
    /// The form that was shown.
    pub given: Return,
    /// Tokens that were shown.
    pub tokens: usize,
    /// Tokens of the complete result.
    pub of_tokens: usize,
    /// Reason of a smaller form: `private`, `cap` of the form, or `budget` of the observation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Source of the summary, where one was shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary_source: Option<SummarySource>,
    /// Reference to the complete result.
    #[serde(rename = "ref")]
    pub reference: String,
}

/// A view: the text and its delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The text for the model; may be empty.
    pub text: String,
    pub delivered: Delivered,
}

/// Caps of the forms in tokens: success and failure.
fn caps(form: Return) -> (usize, usize) {
    match form {
        Return::None => (0, 40),
        Return::Summary => (600, 800),
        Return::Structured | Return::Excerpt => (1_500, 1_500),
        Return::Full | Return::Adaptive => (6_000, 6_000),
        Return::OnFailure => (40, 2_000),
        Return::OnDemand => (160, 160),
    }
}

/// Tokens of the summary of `on_demand`.
const ON_DEMAND: usize = 120;

/// The policy of a node: its own, the graph's, or the default.
pub fn policy_of(graph: &Graph, node: &Node) -> ResultPolicy {
    let own = node.action.result.clone();
    own.or_else(|| graph.info.response_policy.clone())
        .unwrap_or_default()
}

/// The reference to a node's stored output.
pub fn reference_of(graph: &Graph, node: &Node) -> String {
    format!(
        "runtime://runs/{}/actions/{}/output",
        graph.id, node.action.id
    )
}

/// The model's view of a node's result. `cap` lowers the form's own cap.
pub fn deliver(graph: &Graph, node: &Node, cap: usize, count: TokenCounter<'_>) -> Shown {
    let policy = policy_of(graph, node);
    deliver_as(graph, node, &policy, policy.return_to_model, cap, count)
}

/// Renders the result in another form when the budget is short.
pub fn deliver_as(
    graph: &Graph,
    node: &Node,
    policy: &ResultPolicy,
    form: Return,
    cap: usize,
    count: TokenCounter<'_>,
) -> Shown {
    let is_failure = node.state == NodeState::Failed || node.state == NodeState::Uncertain;
    let full_text = full_text_of(node, is_failure);
    // Counted before the privacy check; a private size is reset below.
    let of_tokens = count_long(&full_text, count);
    let requested = policy.return_to_model;
    let mut shown = Shown {
        text: String::new(),
        delivered: Delivered {
            requested,
            given: Return::None,
            tokens: 0,
            of_tokens,
            why: None,
            summary_source: None,
            reference: reference_of(graph, node),
        },
    };
    // Even the size of a private result could reveal its content.
    if node.visibility() > Visibility::Model {
        shown.delivered.of_tokens = 0;
        shown.delivered.why = Some("private".to_owned());
        return shown;
    }
    let (success, failure) = caps(form);
    // All caps apply; the smallest wins.
    let own = policy.max_tokens.map_or(usize::MAX, |max| max as usize);
    let cap = cap.min(own).min(if is_failure { failure } else { success });
    let work = DeliveryWork {
        node,
        policy,
        full_text: &full_text,
        of_tokens,
        is_failure,
        count,
    };
    let (text, given, source) = work.form(form, cap);
    shown.delivered.tokens = count(&text);
    shown.delivered.given = given;
    shown.delivered.summary_source = source;
    // An adaptive result has no fixed form that could be missed.
    if given != requested && requested != Return::Adaptive {
        shown.delivered.why = Some("cap".to_owned());
    }
    shown.text = text;
    shown
}

fn full_text_of(node: &Node, is_failure: bool) -> String {
    if is_failure {
        let error = node.error.as_ref();
        return error.map(|error| error.message.clone()).unwrap_or_default();
    }
    node.output.as_ref().map(text_of).unwrap_or_default()
}

struct DeliveryWork<'a> {
    node: &'a Node,
    policy: &'a ResultPolicy,
    full_text: &'a str,
    of_tokens: usize,
    is_failure: bool,
    count: TokenCounter<'a>,
}

type Formed = (String, Return, Option<SummarySource>);

impl DeliveryWork<'_> {
    fn form(&self, form: Return, cap: usize) -> Formed {
        let clipped = |text: String| clip_head(&text, cap, self.count).to_owned();
        match form {
            Return::None => (String::new(), Return::None, None),
            Return::Summary => self.summary(cap),
            // Clipped again: the pruned value may still exceed the cap.
            Return::Structured => (clipped(self.structured(cap)), form, None),
            Return::Excerpt => {
                let words = &self.policy.priority;
                let ends = if self.is_failure {
                    ExcerptEnds::Tail
                } else {
                    ExcerptEnds::Both
                };
                let text = excerpt(self.full_text, words, ends, cap, self.count);
                (clipped(text), form, None)
            }
            Return::Full if self.of_tokens <= cap => (self.full_text.to_owned(), form, None),
            Return::Full => self.truncated(cap),
            Return::OnFailure if self.is_failure => {
                // The end of an error output usually names the cause.
                (
                    clipped(tail_first(self.full_text, cap, self.count)),
                    form,
                    None,
                )
            }
            Return::OnFailure => {
                let (summary, _, source) = self.summary(cap);
                let line = summary.lines().next().unwrap_or_default().to_owned();
                (line, form, source)
            }
            Return::OnDemand => {
                let (text, _, source) = self.summary(cap.min(ON_DEMAND));
                (text, form, source)
            }
            Return::Adaptive => self.adaptive(cap),
        }
    }

    fn summary(&self, cap: usize) -> Formed {
        // Short texts and errors are their own summary.
        if self.is_failure || self.of_tokens <= cap {
            let text = clip_head(self.full_text, cap, self.count).to_owned();
            return (text, Return::Summary, Some(SummarySource::Mechanical));
        }
        let (text, source) = match &self.node.output {
            Some(output) => summary_of(output),
            None => (String::new(), SummarySource::Mechanical),
        };
        let text = clip_head(&text, cap, self.count).to_owned();
        (text, Return::Summary, Some(source))
    }

    fn structured(&self, cap: usize) -> String {
        let value = match (&self.node.error, &self.node.output) {
            (Some(error), _) if self.is_failure => {
                json!({"code": error.code, "message": error.message})
            }
            (_, Some(output)) => output.value.clone(),
            _ => Value::Null,
        };
        match value {
            Value::Null => String::new(),
            Value::String(text) => crate::result::excerpt::head_and_tail(&text, cap, self.count),
            value => structured(&value, &self.policy.priority, cap, self.count),
        }
    }

    fn truncated(&self, cap: usize) -> Formed {
        match self.policy.if_truncated {
            IfTruncated::ProvideRefAndSummary => self.summary(cap.min(caps(Return::Summary).0)),
            IfTruncated::Truncate => {
                let text = clip_head(self.full_text, cap, self.count).to_owned();
                (text, Return::Excerpt, None)
            }
            IfTruncated::Refuse => (String::new(), Return::None, None),
        }
    }

    /// The fullest form that fits: full, excerpt, summary, none.
    fn adaptive(&self, cap: usize) -> Formed {
        if self.of_tokens <= cap {
            return (self.full_text.to_owned(), Return::Full, None);
        }
        // Below this size windows are too small to be read.
        if cap >= 200 {
            return self.form(Return::Excerpt, cap.min(caps(Return::Excerpt).0));
        }
        if cap >= 20 {
            return self.summary(cap);
        }
        (String::new(), Return::None, None)
    }
}
