//! The steps of each task.

use super::{Arg, StepKind, TURNS, Task, TaskStep};

/// The steps that answer a turn of a task, in order.
pub(in super::super) fn steps(task: Task, turn: usize) -> Vec<TaskStep> {
    match task {
        Task::OneRead => vec![page(1).answer()],
        Task::FiveReads => (1..=5).map(|number| page(number).answer()).collect(),
        Task::FindRead => vec![
            step("find", "find_page", "found-").text("topic", "tides"),
            step("read", "read_page", "code-found-")
                .field("page", "find", "page")
                .answer(),
        ],
        Task::List => vec![
            step("items", "list_items", "item-01-"),
            step("counts", "read_item", "count-").each("items").answer(),
        ],
        Task::Chain => vec![
            step("case", "open_case", "case-").text("customer", "c1"),
            step("invoice", "get_invoice", "invoice-").field("case", "case", "case"),
            step("payment", "get_payment", "payment-").field("invoice", "invoice", "invoice"),
            step("receipt", "get_receipt", "receipt-")
                .field("payment", "payment", "payment")
                .answer(),
        ],
        Task::Judgement => vec![
            step("hall", "inspect_room", "clue-1-").text("room", "hall"),
            step("second", "inspect_room", "clue-2-").judged("room", "hall"),
            step("third", "inspect_room", "clue-3-").judged("room", "second"),
            step("last", "inspect_room", "treasure-")
                .judged("room", "third")
                .answer(),
        ],
        Task::Alternative => vec![
            step("first", "mirror_a", "no-such-token-").text("file", "f1"),
            step("second", "mirror_b", "content-")
                .text("file", "f1")
                .instead("first")
                .answer(),
        ],
        Task::Large => vec![step("log", "read_log", "alert-").answer()],
        Task::Approval => vec![
            step("draft", "read_draft", "draft-"),
            step("send", "send_mail", "sent-")
                .field("body", "draft", "draft")
                .answer(),
        ],
        Task::Children => vec![
            step("one", "researcher-1", "finding-1-").agent("Research topic 1."),
            step("two", "researcher-2", "finding-2-").agent("Research topic 2."),
            TaskStep {
                kind: StepKind::Merge,
                ..step("both", "runtime.merge", "finding-1-")
            }
            .answer(),
        ],
        Task::Long if turn == TURNS => Vec::new(),
        Task::Long => vec![page(turn).answer()],
        Task::Restart => vec![
            step("room", "book_room", "room-booking-").text("room", "r1"),
            step("check", "check_calendar", "slot-").field("booking", "room", "booking"),
            step("car", "book_car", "car-booking-")
                .field("slot", "check", "slot")
                .answer(),
        ],
    }
}

fn step(id: &str, target: &'static str, token: &str) -> TaskStep {
    TaskStep {
        id: id.to_owned(),
        target,
        kind: StepKind::Tool,
        args: Vec::new(),
        token: token.to_owned(),
        answers: false,
    }
}

fn page(number: usize) -> TaskStep {
    let token = format!("code-p{number}-");
    step(&format!("p{number}"), "read_page", &token).text("page", &format!("p{number}"))
}

impl TaskStep {
    fn arg(mut self, name: &'static str, arg: Arg) -> Self {
        self.args.push((name, arg));
        self
    }

    fn text(self, name: &'static str, text: &str) -> Self {
        self.arg(name, Arg::Text(text.to_owned()))
    }

    fn field(self, name: &'static str, of: &'static str, field: &'static str) -> Self {
        self.arg(name, Arg::Field(of, field))
    }

    fn judged(self, name: &'static str, of: &'static str) -> Self {
        self.arg(name, Arg::Judged(of))
    }

    fn each(mut self, of: &'static str) -> Self {
        self.kind = StepKind::Each(of);
        self.arg("item", Arg::Item)
    }

    fn instead(mut self, of: &'static str) -> Self {
        self.kind = StepKind::Instead(of);
        self
    }

    fn agent(mut self, prompt: &str) -> Self {
        self.kind = StepKind::Agent;
        self.text("prompt", prompt)
    }

    fn answer(mut self) -> Self {
        self.answers = true;
        self
    }
}
