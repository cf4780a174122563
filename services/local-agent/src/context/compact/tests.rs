use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use serde_json::json;

use super::*;
use crate::context::budget::BudgetSettings;
use crate::context::checkpoint::{Checkpoint, SCHEMA_VERSION};
use crate::context::testing::{Generator, assert_legal, call, result};
use crate::context::{reference_data, summary};

/// Polls a future that never waits.
fn run<F: Future>(future: F) -> F::Output {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

/// Tokenizer that differs from the estimates, as real ones do.
#[derive(Default)]
struct FakeTokenizer {
    calls: Mutex<usize>,
    /// Tokens per message, besides its text.
    message: u64,
    /// Tokens per multi-byte character, and per four single-byte ones.
    wide: u64,
    narrow: u64,
    fails: bool,
}

impl FakeTokenizer {
    fn plain() -> Self {
        Self::of(3, 1, 1)
    }

    fn of(message: u64, wide: u64, narrow: u64) -> Self {
        Self {
            message,
            wide,
            narrow,
            ..Self::default()
        }
    }

    fn calls(&self) -> usize {
        *self.calls.lock().unwrap()
    }

    fn tokens(&self, messages: &[Message]) -> u64 {
        let of = |message: &Message| {
            let text = serde_json::to_string(message).unwrap();
            let wide = text.chars().filter(|c| c.len_utf8() > 1).count() as u64;
            let narrow = text.chars().count() as u64 - wide;
            self.message + wide * self.wide + (narrow * self.narrow).div_ceil(4)
        };
        messages.iter().map(of).sum()
    }
}

impl Counter for FakeTokenizer {
    type Error = &'static str;

    async fn count(&self, messages: &[Message]) -> Result<u64, Self::Error> {
        *self.calls.lock().unwrap() += 1;
        if self.fails {
            return Err("no tokenizer");
        }
        Ok(self.tokens(messages))
    }
}

/// Model that writes a fixed text, or fails.
struct FixedSummarizer {
    text: Option<&'static str>,
    requests: Mutex<Vec<SummaryRequest>>,
}

impl FixedSummarizer {
    fn new(text: Option<&'static str>) -> Self {
        Self {
            text,
            requests: Mutex::default(),
        }
    }

    fn request_count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

impl Summarizer for FixedSummarizer {
    async fn summarize(&self, request: SummaryRequest) -> Option<String> {
        self.requests.lock().unwrap().push(request);
        self.text.map(str::to_owned)
    }
}

fn budget(window: u64) -> RequestBudget {
    let configured = BudgetSettings {
        window,
        ..BudgetSettings::default()
    };
    RequestBudget::new(&configured, &protocol::JsonObject::new())
}

fn turns(count: usize) -> Vec<Message> {
    let turn = |n| {
        [
            Message::text("user", format!("question {n}: {}", "why so ".repeat(20))),
            Message::text(
                "assistant",
                format!("answer {n}: {}", "because ".repeat(20)),
            ),
        ]
    };
    (0..count).flat_map(turn).collect()
}

fn conversation(history: Vec<Message>) -> RequestMessages {
    RequestMessages {
        prompt: vec![Message::text("system", "be kind")],
        history,
        current: vec![Message::text("user", "what now?")],
        ..RequestMessages::default()
    }
}

fn pass(
    conversation: RequestMessages,
    budget: &RequestBudget,
    counter: &FakeTokenizer,
    model: &FixedSummarizer,
) -> Compacted {
    run(compact(conversation, budget, None, counter, model)).unwrap()
}

#[test]
fn keeps_fitting_requests_after_one_count() {
    let (counter, model) = (FakeTokenizer::plain(), FixedSummarizer::new(Some("short")));
    let initial = conversation(turns(3));
    let passed = pass(initial.clone(), &budget(16_000), &counter, &model);
    assert_eq!(
        (passed.conversation, passed.compacted, passed.summary),
        (initial, false, None)
    );
    assert_eq!((counter.calls(), model.request_count()), (1, 0));
    assert_eq!(passed.anchor.unwrap().messages, 8);
    assert_eq!(passed.anchor.unwrap().tokens, passed.tokens_after);
}

#[test]
fn skips_count_when_estimate_is_enough() {
    let (counter, model) = (FakeTokenizer::plain(), FixedSummarizer::new(None));
    let initial = conversation(turns(3));
    let anchor = Some(Anchor {
        messages: 7,
        tokens: 900,
    });
    let passed = run(compact(initial, &budget(16_000), anchor, &counter, &model)).unwrap();
    assert_eq!(
        (passed.compacted, passed.anchor, counter.calls()),
        (false, anchor, 0)
    );
}

#[test]
fn prefers_provider_usage_over_own_count() {
    let (counter, model) = (FakeTokenizer::plain(), FixedSummarizer::new(Some("short")));
    let initial = conversation(turns(60));
    let budget = budget(16_000);
    let counted = counter.tokens(&initial.messages());
    assert!(counted < budget.input);
    let anchor = |tokens| {
        Some(Anchor {
            messages: 121,
            tokens,
        })
    };
    let near = run(compact(
        initial.clone(),
        &budget,
        anchor(budget.input - 15),
        &counter,
        &model,
    ))
    .unwrap();
    assert_eq!((near.compacted, counter.calls()), (false, 1));
    let over = run(compact(
        initial,
        &budget,
        anchor(budget.input + 50),
        &counter,
        &model,
    ))
    .unwrap();
    assert!(over.compacted && over.tokens_before > budget.input);
    assert!(
        over.tokens_after <= budget.input,
        "{} of {}",
        over.tokens_after,
        budget.input
    );
    let beside = budget.input + 50 - counted;
    assert!(over.tokens_after + 20 > counter.tokens(&over.conversation.messages()) + beside);
    assert_eq!(counter.calls(), 3);
}

#[test]
fn an_anchor_of_other_messages_is_not_believed() {
    let (counter, model) = (FakeTokenizer::plain(), FixedSummarizer::new(None));
    let mut initial = conversation(turns(3));
    initial.history.push(Message::text("thinking", "hm"));
    for messages in [9, 99] {
        let anchor = Some(Anchor {
            messages,
            tokens: 1,
        });
        let passed = run(compact(
            initial.clone(),
            &budget(16_000),
            anchor,
            &counter,
            &model,
        ))
        .unwrap();
        assert!(passed.tokens_before > 100);
    }
    assert_eq!(counter.calls(), 2);
}

#[test]
fn measures_fixed_parts_once() {
    let (counter, model) = (FakeTokenizer::plain(), FixedSummarizer::new(None));
    let mut initial = conversation(turns(3));
    let size = estimate::messages(&initial.messages());
    initial.history.push(Message::text("thinking", "hm"));
    let beside = Anchor {
        messages: 0,
        tokens: 1_000,
    };
    for budget in [budget(16_000), RequestBudget::off()] {
        let compacting = compact(initial.clone(), &budget, Some(beside), &counter, &model);
        let passed = run(compacting).unwrap();
        assert_eq!(passed.tokens_after, 1_000 + size);
        assert_eq!(passed.anchor, Some(beside));
    }
    assert_eq!(counter.calls(), 0);
}

#[test]
fn summarizes_old_history_only() {
    let (counter, model) = (
        FakeTokenizer::plain(),
        FixedSummarizer::new(Some("## Goal\nKnow why.")),
    );
    let history = turns(150);
    let budget = budget(16_000);
    let passed = pass(conversation(history.clone()), &budget, &counter, &model);
    assert!(passed.compacted && passed.tokens_before > budget.input);
    assert_eq!((counter.calls(), model.request_count()), (2, 1));
    let remaining = passed.conversation;
    let tail = &history[passed.omitted_history..];
    assert!(!tail.is_empty() && tail.len() < history.len());
    assert_eq!(remaining.history, tail);
    assert_eq!(remaining.current[0].plain_text(), "what now?");
    assert_eq!(remaining.prompt[0].plain_text(), "be kind");
    assert_eq!(remaining.summaries.len(), 1);
    let text = remaining.summaries[0].plain_text();
    assert_eq!(Some(&text), passed.summary.as_ref());
    let count = passed.omitted_history;
    assert!(text.starts_with(&format!(
        "<conversation_summary>\nv=1 source=llm count={count}\n"
    )));
    assert!(text.contains("## Goal\nKnow why."));
    assert!(passed.tokens_after < budget.input / 2);
}

#[test]
fn no_more_history_than_is_configured_stays() {
    let configured = BudgetSettings {
        window: 40_000,
        keep_recent: 1_000,
        ..BudgetSettings::default()
    };
    let budget = RequestBudget::new(&configured, &protocol::JsonObject::new());
    let (counter, model) = (FakeTokenizer::plain(), FixedSummarizer::new(Some("short")));
    let passed = pass(conversation(turns(400)), &budget, &counter, &model);
    let tail = counter.tokens(&passed.conversation.history);
    assert!((700..=1_200).contains(&tail), "{tail}");
}

#[test]
fn without_a_model_the_summary_is_made_here() {
    for text in [None, Some(""), Some("<think>hm</think>")] {
        let (counter, model) = (FakeTokenizer::plain(), FixedSummarizer::new(text));
        let passed = pass(conversation(turns(150)), &budget(16_000), &counter, &model);
        let text = passed.summary.unwrap();
        assert!(
            text.starts_with("<conversation_summary>\nv=v1 count="),
            "{text}"
        );
        assert!(text.contains(". user: question "));
        assert_eq!(model.request_count(), 1);
    }
}

#[test]
fn a_counter_that_fails_fails_the_pass() {
    let counter = FakeTokenizer {
        fails: true,
        ..FakeTokenizer::plain()
    };
    let model = FixedSummarizer::new(None);
    let passed = run(compact(
        conversation(turns(1)),
        &budget(16_000),
        None,
        &counter,
        &model,
    ));
    assert_eq!(passed, Err("no tokenizer"));
    let off = run(compact(
        conversation(turns(1)),
        &RequestBudget::off(),
        None,
        &counter,
        &model,
    ));
    assert!(!off.unwrap().compacted);
    assert_eq!(counter.calls(), 1);
}

#[test]
fn new_summary_includes_earlier_one() {
    let (counter, model) = (
        FakeTokenizer::plain(),
        FixedSummarizer::new(Some("new words")),
    );
    let mut initial = conversation(turns(150));
    let old = "<conversation_summary>\nv=1 source=llm count=40\nold words\n</conversation_summary>";
    initial.summaries = vec![Message::text("system", old)];
    let passed = pass(initial, &budget(16_000), &counter, &model);
    assert_eq!(passed.conversation.summaries.len(), 1);
    let text = passed.summary.unwrap();
    assert!(text.contains(&format!("count={}", 40 + passed.omitted_history)));
    assert!(!text.contains("old words"));
    let request_text = model.requests.lock().unwrap()[0].messages[1].plain_text();
    assert!(request_text.contains("<previous-summary>\nold words\n"));
}

#[test]
fn knowledge_is_shortened_before_history_goes() {
    let (counter, model) = (FakeTokenizer::plain(), FixedSummarizer::new(Some("short")));
    let budget = budget(16_000);
    let mut initial = conversation(turns(40));
    let chunks: Vec<_> = (0..10)
        .map(|n| format!("passage {n} ").repeat(400))
        .collect();
    initial.retrieved = reference_data::retrieved_message(&chunks);
    let history = initial.history.clone();
    let passed = pass(initial, &budget, &counter, &model);
    assert!(passed.compacted && passed.summary.is_none());
    assert_eq!((model.request_count(), passed.omitted_history), (0, 0));
    assert_eq!(passed.conversation.history, history);
    let text = passed.conversation.retrieved.unwrap().plain_text();
    assert!(text.contains("passage 0 ") && !text.contains("passage 9 "));
    // Not smaller than necessary.
    assert!((budget.input * 9 / 10..=budget.input).contains(&passed.tokens_after));
}

#[test]
fn keeps_references_without_summary_budget() {
    let configured = BudgetSettings {
        window: 16_000,
        summary: 30,
        ..BudgetSettings::default()
    };
    let budget = RequestBudget::new(&configured, &protocol::JsonObject::new());
    let (counter, model) = (FakeTokenizer::plain(), FixedSummarizer::new(Some("short")));
    let mut history = turns(150);
    let references: Vec<_> = (0..40).map(|n| format!("order_eu_{n}")).collect();
    history[0] = Message::text("user", references.join(" "));
    let passed = pass(conversation(history), &budget, &counter, &model);
    let summary = summary::Summary::parse(&passed.summary.unwrap());
    assert_eq!(summary.references.identifiers(), references);
}

#[test]
fn the_omitted_are_counted_as_they_came_in() {
    let (counter, model) = (FakeTokenizer::plain(), FixedSummarizer::new(Some("short")));
    let mut history = Vec::new();
    for message in turns(150) {
        history.push(Message::text("thinking", "hm"));
        history.push(message);
    }
    let passed = pass(
        conversation(history.clone()),
        &budget(16_000),
        &counter,
        &model,
    );
    let rest = &history[passed.omitted_history..];
    assert_eq!(
        passed.conversation.history,
        message_validation::sanitize(rest.to_vec())
    );
    assert!(passed.omitted_history > 100);
}

#[test]
fn drops_oldest_rounds_of_long_runs() {
    let (counter, model) = (
        FakeTokenizer::plain(),
        FixedSummarizer::new(Some("did a lot")),
    );
    let mut initial = conversation(turns(4));
    for n in 0..30 {
        let id = format!("call{n}");
        initial.current.push(call(&[&id]));
        initial
            .current
            .push(result(&id, &format!("found {n} {}", "row ".repeat(500))));
    }
    let passed = pass(initial, &budget(16_000), &counter, &model);
    let current = &passed.conversation.current;
    assert_legal(current);
    assert_eq!(current[0].plain_text(), "what now?");
    assert!(
        current
            .last()
            .unwrap()
            .plain_text()
            .starts_with("found 29 ")
    );
    assert!((3..=15).contains(&current.len()), "{}", current.len());
    assert_eq!(
        (passed.conversation.history.len(), passed.omitted_history),
        (0, 8)
    );
    assert!(passed.summary.unwrap().contains("did a lot"));
    let request_text = model.requests.lock().unwrap()[0].messages[1].plain_text();
    assert!(request_text.contains("question 0") && request_text.contains("found 3 "));
}

#[test]
fn summarizes_all_history_without_remaining_budget() {
    let (counter, model) = (FakeTokenizer::plain(), FixedSummarizer::new(Some("short")));
    let mut initial = conversation(turns(10));
    initial.current = vec![Message::text("user", "x ".repeat(30_000))];
    let budget = budget(16_000);
    let passed = pass(initial, &budget, &counter, &model);
    assert_eq!(passed.omitted_history, 20);
    assert!(passed.summary.unwrap().contains("short"));
    assert_eq!(passed.conversation.prompt[0].plain_text(), "be kind");
    assert!(passed.tokens_after <= budget.input && passed.tokens_after > budget.input / 2);
}

#[test]
fn retry_shrinks_previously_accepted_request() {
    let (counter, model) = (FakeTokenizer::plain(), FixedSummarizer::new(Some("short")));
    let budget = budget(16_000);
    let initial = conversation(turns(100));
    let first = pass(initial, &budget, &counter, &model);
    assert!(!first.compacted && first.tokens_after > budget.for_retry().input);
    let retried = pass(first.conversation, &budget.for_retry(), &counter, &model);
    assert!(retried.compacted && retried.tokens_after <= budget.for_retry().input);
    assert!(retried.tokens_after < first.tokens_after);
}

/// 6,000 seeds pass too and take half a minute.
const SEEDS: u64 = 250;

#[test]
fn always_fits_budget_and_stays_valid() {
    let counters = [(3, 1, 1), (0, 3, 1), (8, 1, 2), (4, 2, 2), (1, 0, 1)];
    let (mut compacted, mut summarised) = (0, 0);
    for seed in 0..SEEDS {
        let mut generator = Generator::new(seed);
        let initial = generator.conversation(25);
        let (message, wide, narrow) = counters[usize::try_from(seed).unwrap() % counters.len()];
        let counter = FakeTokenizer::of(message, wide, narrow);
        let counted = counter.tokens(&initial.messages());
        let window = 400 + generator.below(counted * 3 / 2);
        let budget = budget(window);
        let model = FixedSummarizer::new(
            [None, Some("words"), Some("</conversation_summary>")]
                [usize::try_from(seed % 3).unwrap()],
        );
        let question = initial
            .current
            .iter()
            .rfind(|message| message.role == "user")
            .cloned();
        let history = initial.history.len();
        let passed = pass(initial, &budget, &counter, &model);
        let messages = passed.conversation.messages();
        assert_legal(&messages);
        let sent = counter.tokens(&messages);
        assert!(
            sent <= budget.input,
            "seed {seed}: {sent} of {}",
            budget.input
        );
        assert_eq!(sent, passed.tokens_after, "seed {seed}");
        assert_eq!(passed.compacted, counted > budget.input, "seed {seed}");
        let question = question.unwrap().plain_text();
        let remaining = passed
            .conversation
            .current
            .iter()
            .rfind(|message| message.role == "user");
        let remaining = remaining.unwrap().plain_text();
        let remaining = remaining.split("... [truncated]").next().unwrap();
        assert!(
            !remaining.is_empty()
                && question.starts_with(remaining.split("[an attachment").next().unwrap()),
            "seed {seed}"
        );
        assert!(passed.omitted_history <= history);
        assert!(passed.conversation.summaries.len() <= 1 || !passed.compacted);
        assert!(counter.calls() <= 5, "seed {seed}: {}", counter.calls());
        compacted += usize::from(passed.compacted);
        summarised += usize::from(passed.summary.is_some());
    }
    assert!(
        compacted > 100 && summarised > 50,
        "{compacted} {summarised}"
    );
}

/// Conversation of 300 turns: each run compacts, stores its checkpoint and answers.
struct LongConversation {
    checkpoint: Option<Checkpoint>,
    history: Vec<Message>,
    summaries: usize,
}

impl LongConversation {
    fn turn(
        &mut self,
        text: &str,
        answered: &str,
        budget: &RequestBudget,
        model: &FixedSummarizer,
    ) -> Compacted {
        let counter = FakeTokenizer::plain();
        let mut initial = conversation(self.history.clone());
        initial.current = vec![Message::text("user", text)];
        initial.summaries.extend(
            self.checkpoint
                .as_ref()
                .and_then(Checkpoint::summary_message),
        );
        let passed = pass(initial, budget, &counter, model);
        assert!(passed.tokens_after <= budget.input);
        if let Some(summary) = &passed.summary {
            self.summaries += 1;
            self.history.drain(..passed.omitted_history);
            let stored = json!({
                "schema_version": SCHEMA_VERSION, "conversation_id": "c", "summary": summary,
                "covers_until": "cursor", "tokens_before": passed.tokens_before, "created_at": 1,
            });
            self.checkpoint = Checkpoint::parse(&stored, "c");
            assert!(self.checkpoint.is_some());
        }
        self.history.push(Message::text("user", text));
        self.history.push(Message::text("assistant", answered));
        passed
    }
}

#[test]
fn keeps_references_over_300_lossy_summaries() {
    for forgets in [Some("(none)"), None] {
        let budget = budget(16_000);
        let model = FixedSummarizer::new(forgets);
        let mut chat = LongConversation {
            checkpoint: None,
            history: Vec::new(),
            summaries: 0,
        };
        let planted: Vec<_> = (0..8).map(|n| format!("order_eu_{n}{n}{n}")).collect();
        let path = "/workspace/reports/first.csv";
        let mut last = None;
        for turn in 0..300 {
            let text = match planted.get(turn) {
                Some(planted) => format!("Remember {planted}. {}", "It matters. ".repeat(12)),
                None if turn == 9 => json!({"path": path}).to_string(),
                None => format!(
                    "Now look at doc-{turn}-x9. {}",
                    "It matters little. ".repeat(12)
                ),
            };
            let answered = "I have seen to it, and this is what came of it. ".repeat(8);
            last = Some(chat.turn(&text, &answered, &budget, &model));
        }
        let text = serde_json::to_string(&last.unwrap().conversation.messages()).unwrap();
        for reference in planted.iter().map(String::as_str).chain([path]) {
            assert!(text.contains(reference), "{reference}");
        }
        assert!((2..15).contains(&chat.summaries), "{}", chat.summaries);
        assert!(model.request_count() < 15);
        let summary = summary::Summary::parse(&chat.checkpoint.unwrap().summary);
        assert!(summary.count > 400, "{}", summary.count);
    }
}

#[test]
fn second_pass_is_a_no_op() {
    for seed in 0..100 {
        let mut generator = Generator::new(seed);
        let (counter, model) = (FakeTokenizer::plain(), FixedSummarizer::new(Some("short")));
        let budget = budget(6_000);
        let first = pass(generator.conversation(30), &budget, &counter, &model);
        let calls = counter.calls();
        let again = run(compact(
            first.conversation.clone(),
            &budget,
            first.anchor,
            &counter,
            &model,
        ))
        .unwrap();
        assert!(!again.compacted, "seed {seed}");
        assert_eq!(again.conversation, first.conversation);
        assert_eq!(counter.calls(), calls);
    }
}
