//! The tasks: the user's request, the steps that answer it, and the tokens of a right answer.
//!
//! A step's result holds a token that begins with the step's `token` and ends in the salt of the play. So the
//! token can come only from a result.

mod plans;

pub(super) use plans::steps;

/// Items of the list.
pub(super) const ITEMS: usize = 12;
/// Turns of the long chat.
pub(super) const TURNS: usize = 30;

/// One task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    OneRead,
    FiveReads,
    FindRead,
    List,
    Chain,
    Judgement,
    Alternative,
    Large,
    Approval,
    Children,
    Long,
    Restart,
}

/// One step of a task.
#[derive(Clone, Debug)]
pub(super) struct TaskStep {
    pub(super) id: String,
    /// A tool or an agent.
    pub(super) target: &'static str,
    pub(super) kind: StepKind,
    pub(super) args: Vec<(&'static str, Arg)>,
    /// Prefix of the token in the result.
    pub(super) token: String,
    /// True when the answer must contain the result.
    pub(super) answers: bool,
}

/// Execution of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepKind {
    /// One call of a tool.
    Tool,
    /// One call of a tool for each item of this step.
    Each(&'static str),
    /// One call of a tool, only if this step fails.
    Instead(&'static str),
    /// A child run.
    Agent,
    /// Joins the results of all agents.
    Merge,
}

/// An argument.
#[derive(Clone, Debug)]
pub(super) enum Arg {
    Text(String),
    /// A field in the result of a step.
    Field(&'static str, &'static str),
    /// A conclusion from the text of a result; it needs a model.
    Judged(&'static str),
    /// The item of a list.
    Item,
}

impl Task {
    pub(super) const ALL: [Self; 12] = [
        Self::OneRead,
        Self::FiveReads,
        Self::FindRead,
        Self::List,
        Self::Chain,
        Self::Judgement,
        Self::Alternative,
        Self::Large,
        Self::Approval,
        Self::Children,
        Self::Long,
        Self::Restart,
    ];

    /// The task's name in requests and options.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OneRead => "one-read",
            Self::FiveReads => "five-reads",
            Self::FindRead => "find-read",
            Self::List => "list",
            Self::Chain => "chain",
            Self::Judgement => "judgement",
            Self::Alternative => "alternative",
            Self::Large => "large",
            Self::Approval => "approval",
            Self::Children => "children",
            Self::Long => "long",
            Self::Restart => "restart",
        }
    }

    /// The task's row title in tables.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::OneRead => "one read",
            Self::FiveReads => "5 independent reads",
            Self::FindRead => "find, then read",
            Self::List => "list of 12, one call each",
            Self::Chain => "chain of 4, bindable",
            Self::Judgement => "chain of 4, needs judgement",
            Self::Alternative => "one call fails, alternative exists",
            Self::Large => "2 MB output, one line matters",
            Self::Approval => "approval in the middle",
            Self::Children => "two children and a merge",
            Self::Long => "long chat, 30 turns",
            Self::Restart => "runner restarts in the middle",
        }
    }

    /// Number of user messages.
    pub(super) fn turns(self) -> usize {
        if self == Self::Long { TURNS } else { 1 }
    }

    /// The user's message of a turn, counted from 1. Its marker names the task for the scripted model.
    pub(super) fn prompt(self, turn: usize) -> String {
        let text = match self {
            Self::OneRead => "Which code has page p1?".to_owned(),
            Self::FiveReads => "Which codes have the pages p1, p2, p3, p4 and p5?".to_owned(),
            Self::FindRead => "Find the page about tides and tell its code.".to_owned(),
            Self::List => "Tell the count of each item of the list.".to_owned(),
            Self::Chain => {
                "Which receipt belongs to the payment of the invoice in the case of customer c1?"
                    .to_owned()
            }
            Self::Judgement => {
                "Begin in the room hall and follow the clues to the treasure.".to_owned()
            }
            Self::Alternative => {
                "Fetch the file f1 from mirror a, or from mirror b if that fails.".to_owned()
            }
            Self::Large => "Which alert stands in the log?".to_owned(),
            Self::Approval => "Send the draft by mail and tell the number of the mail.".to_owned(),
            Self::Children => "Have both researchers work and tell both findings.".to_owned(),
            Self::Long if turn < TURNS => format!("Which code has page p{turn}?"),
            Self::Long => "Which code had the first page that I asked for?".to_owned(),
            Self::Restart if turn > 1 => "Go on.".to_owned(),
            Self::Restart => {
                "Book the room, check the calendar for it, then book a car for that slot."
                    .to_owned()
            }
        };
        format!("{text} [[{} {turn}]]", self.name())
    }

    /// Task and turn of the last marker in a text.
    pub(super) fn of(text: &str) -> Option<(Self, usize)> {
        let (_, rest) = text.rsplit_once("[[")?;
        let (mark, _) = rest.split_once("]]")?;
        let (name, turn) = mark.split_once(' ')?;
        let task = Self::ALL.into_iter().find(|task| task.name() == name)?;
        Some((task, turn.parse().ok()?))
    }

    /// The tokens of a right answer to the last turn.
    pub(super) fn expected(self, salt: &str) -> Vec<String> {
        if self == Self::Long {
            return vec![format!("code-p1-{salt}")];
        }
        let steps = steps(self, 1);
        let answers = steps.iter().filter(|step| step.answers);
        let merged = (self == Self::Children).then(|| "finding-2-".to_owned());
        answers
            .flat_map(TaskStep::tokens)
            .chain(merged)
            .map(|token| format!("{token}{salt}"))
            .collect()
    }

    /// True when an arm of native tool calls can do the task.
    pub(super) fn is_for_loops(self) -> bool {
        !matches!(self, Self::Approval | Self::Children)
    }
}

impl TaskStep {
    /// Prefixes of the tokens in the step's results.
    pub(super) fn tokens(&self) -> Vec<String> {
        match self.kind {
            StepKind::Each(_) => (1..=ITEMS)
                .map(|item| format!("{}{item:02}-", self.token))
                .collect(),
            _ => vec![self.token.clone()],
        }
    }

    /// The steps whose results are arguments of this step.
    pub(super) fn sources(&self) -> impl Iterator<Item = &'static str> {
        let each = match self.kind {
            StepKind::Each(of) => Some(of),
            _ => None,
        };
        let args = self.args.iter().filter_map(|(_, arg)| match arg {
            Arg::Field(of, _) | Arg::Judged(of) => Some(*of),
            Arg::Text(_) | Arg::Item => None,
        });
        each.into_iter().chain(args)
    }
}
