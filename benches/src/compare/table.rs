//! Prints the figures as Markdown, and the verdict.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::arms::Arm;
use super::play::Play;
use super::tasks::Task;
use super::upstream::TOKEN_CHARS;
use crate::figures::median;

/// All plays by task and arm. A missing pair was skipped.
pub(super) type Plays = BTreeMap<(Task, Arm), Vec<Play>>;

/// One figure of a play.
type PlayFigure = fn(&Play) -> f64;

const FIGURES: [(&str, usize, PlayFigure); 7] = [
    ("Model calls", 0, |play| play.tally.model_calls as f64),
    ("Tokens in (thousands)", 1, |play| {
        tokens(play.tally.chars_in) / 1000.0
    }),
    ("Tokens out", 0, |play| tokens(play.tally.chars_out)),
    ("Shown tokens: tool results in requests", 0, |play| {
        tokens(play.tally.chars_shown)
    }),
    ("Wall time (seconds)", 1, |play| play.seconds),
    ("Tool calls", 0, |play| {
        play.tally.tools.values().sum::<usize>() as f64
    }),
    ("Repairs", 0, |play| play.tally.repairs as f64),
];

fn tokens(chars: usize) -> f64 {
    chars.div_ceil(TOKEN_CHARS) as f64
}

/// The median of a figure; `None` without plays.
fn of(plays: &Plays, task: Task, arm: Arm, figure: PlayFigure) -> Option<f64> {
    let plays = plays.get(&(task, arm))?;
    let figures: Vec<_> = plays.iter().map(figure).collect();
    Some(median(&figures))
}

fn right(plays: &Plays, task: Task, arm: Arm) -> Option<bool> {
    let plays = plays.get(&(task, arm))?;
    Some(plays.iter().all(|play| play.is_right))
}

/// All tables. Figures of an arm that did not succeed are marked.
pub(super) fn tables(plays: &Plays) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "| arm | |\n|---|---|");
    for arm in Arm::ALL {
        let _ = writeln!(text, "| {} | {} |", arm.letter(), arm.title());
    }
    let tasks: Vec<_> = Task::ALL
        .into_iter()
        .filter(|task| plays.keys().any(|(of, _)| of == task))
        .collect();
    for (title, digits, figure) in FIGURES {
        let letters = Arm::ALL.map(Arm::letter).join(" | ");
        let _ = writeln!(
            text,
            "\n| {title} | {letters} |\n|---|{}",
            "---:|".repeat(Arm::ALL.len())
        );
        for task in &tasks {
            let cells = Arm::ALL.map(|arm| {
                let figure = of(plays, *task, arm, figure);
                let mark = if right(plays, *task, arm) == Some(false) {
                    " ✗"
                } else {
                    ""
                };
                figure.map_or("–".to_owned(), |figure| {
                    format!("{figure:.digits$}{mark}")
                })
            });
            let _ = writeln!(text, "| {} | {} |", task.title(), cells.join(" | "));
        }
    }
    text.push_str(
        "\n✗: the answer lacks a requested token, or a booking was made twice. –: not played.\n",
    );
    text
}

/// The criteria of the comparison, each with its outcome.
pub(super) fn verdict(plays: &Plays) -> Vec<(String, Option<bool>)> {
    let calls = |task, arm| of(plays, task, arm, FIGURES[0].2);
    let pairs = |one: Arm, other: Arm| {
        let pair = move |task| Some((task, calls(task, one)?, calls(task, other)?));
        Task::ALL.into_iter().filter_map(pair)
    };
    let mut lines = Vec::new();
    let above: Vec<_> = pairs(Arm::Flat, Arm::Parallel)
        .filter(|(task, flat, parallel)| {
            flat > parallel && right(plays, *task, Arm::Parallel) == Some(true)
        })
        .map(|(task, flat, parallel)| format!("{}: {flat} above {parallel}", task.title()))
        .collect();
    let detail = if above.is_empty() {
        String::new()
    } else {
        format!(" ({})", above.join("; "))
    };
    let has_both = pairs(Arm::Flat, Arm::Parallel).next().is_some();
    let rule = "D needs no more model calls than B on any task that B solves";
    lines.push((
        format!("{rule}{detail}"),
        has_both.then_some(above.is_empty()),
    ));
    let saves = |task, rule: fn(f64, f64) -> bool| {
        let is_met = rule(calls(task, Arm::Full)?, calls(task, Arm::Parallel)?);
        // An abandoned task saves nothing.
        Some(is_met && right(plays, task, Arm::Full) == Some(true))
    };
    let list = saves(Task::List, |full, parallel| full + 1.0 <= parallel);
    lines.push(("E saves at least one call on the list".to_owned(), list));
    let chain = saves(Task::Chain, |full, parallel| full * 2.0 <= parallel);
    lines.push((
        "E saves half of the calls on the bindable chain".to_owned(),
        chain,
    ));
    let lost: Vec<_> = Task::ALL
        .into_iter()
        .filter(|task| {
            right(plays, *task, Arm::Parallel) == Some(true)
                && right(plays, *task, Arm::Full) == Some(false)
        })
        .map(Task::title)
        .collect();
    let detail = if lost.is_empty() {
        String::new()
    } else {
        format!(" (lost: {})", lost.join(", "))
    };
    let has_both = pairs(Arm::Full, Arm::Parallel).next().is_some();
    lines.push((
        format!("E solves every task that B solves{detail}"),
        has_both.then_some(lost.is_empty()),
    ));
    lines
}

/// All plays as JSON.
pub(super) fn to_json(plays: &Plays) -> Value {
    let rows = plays.iter().flat_map(|((task, arm), plays)| {
        plays.iter().map(|play| {
            json!({
                "task": task.name(), "arm": arm.letter(), "model_calls": play.tally.model_calls,
                "child_calls": play.tally.child_calls, "tokens_in": tokens(play.tally.chars_in),
                "tokens_out": tokens(play.tally.chars_out), "tokens_shown": tokens(play.tally.chars_shown),
                "repairs": play.tally.repairs, "tools": play.tally.tools, "seconds": play.seconds,
                "success": play.is_right, "said": play.answer,
            })
        })
    });
    Value::Array(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::upstream::PlayCounts;

    fn play(model_calls: usize, is_right: bool) -> Vec<Play> {
        let tally = PlayCounts {
            model_calls,
            ..PlayCounts::default()
        };
        vec![Play {
            tally,
            seconds: 1.0,
            is_right,
            answer: String::new(),
        }]
    }

    fn outcomes(plays: &Plays) -> Vec<Option<bool>> {
        verdict(plays)
            .into_iter()
            .map(|(_, is_met)| is_met)
            .collect()
    }

    #[test]
    fn verdict_follows_criteria() {
        let mut plays = Plays::from([
            ((Task::List, Arm::Parallel), play(3, true)),
            ((Task::List, Arm::Flat), play(3, true)),
            ((Task::List, Arm::Full), play(2, true)),
            ((Task::Chain, Arm::Parallel), play(5, true)),
            ((Task::Chain, Arm::Full), play(2, true)),
        ]);
        assert_eq!(outcomes(&plays), [Some(true); 4]);
        plays.insert((Task::List, Arm::Flat), play(4, true));
        plays.insert((Task::List, Arm::Full), play(3, true));
        plays.insert((Task::Chain, Arm::Full), play(2, false));
        assert_eq!(outcomes(&plays), [Some(false); 4]);
    }

    #[test]
    fn missing_arms_give_no_verdict() {
        assert_eq!(outcomes(&Plays::new()), [None; 4]);
    }

    #[test]
    fn marks_failures_in_every_table() {
        let plays = Plays::from([((Task::Large, Arm::Serial), play(2, false))]);
        let text = tables(&plays);
        assert!(
            text.contains("| 2 MB output, one line matters | 2 ✗ | – |"),
            "{text}"
        );
    }
}
