//! Which turns are shown exactly, briefly or as one line: noise is kept out, and cached prefixes stay long.

use std::collections::BTreeMap;

use crate::graph::GraphStatus;
use crate::result::tokens::TokenCounter;
use crate::transcript::{CallTurn, Notice, ProtocolTurn, TranscriptTurn, render};

/// Protocol turns that stay exact; older ones change in groups of the same size.
const FRESH: usize = 3;
/// Tokens of a declaration that is shown exactly while it is fresh.
const EXACT_TOKENS: usize = 800;

/// Form of earlier declarations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    /// All exactly.
    Full,
    /// All by their results.
    Compressed,
    /// Exactly while short and fresh.
    #[default]
    Hybrid,
}

/// The turns as they are shown to the model, within `most` tokens where that is possible without the user's turns.
pub fn replay(
    turns: &[TranscriptTurn],
    mode: Replay,
    max_tokens: usize,
    count: TokenCounter<'_>,
) -> Vec<TranscriptTurn> {
    let mut shown = without_old_notices(turns);
    set_forms(&mut shown, mode);
    drop_noise(&mut shown);
    fit(&mut shown, max_tokens, count);
    shown
}

/// Notices are shown once: in the request that follows them.
fn without_old_notices(turns: &[TranscriptTurn]) -> Vec<TranscriptTurn> {
    let last = turns.len().saturating_sub(1);
    let is_shown = |(index, turn): &(usize, &TranscriptTurn)| {
        *index == last || !matches!(turn, TranscriptTurn::Notice(_))
    };
    let shown = turns.iter().enumerate().filter(is_shown);
    shown.map(|(_, turn)| turn.clone()).collect()
}

fn protocols(turns: &mut [TranscriptTurn]) -> impl Iterator<Item = &mut ProtocolTurn> {
    turns.iter_mut().filter_map(|turn| match turn {
        TranscriptTurn::Protocol(turn) => Some(turn),
        _ => None,
    })
}

/// A turn changes from exact to brief at most once, in groups, so that a cached prefix stays valid for long.
fn set_forms(turns: &mut [TranscriptTurn], mode: Replay) {
    let all = protocols(turns).count();
    // Groups of the same size: the prompt cache breaks once for each group.
    let brief = all.saturating_sub(FRESH) / FRESH * FRESH;
    for (index, turn) in protocols(turns).enumerate() {
        turn.is_exact = match mode {
            Replay::Full => true,
            Replay::Compressed => false,
            Replay::Hybrid => index >= brief && turn.tokens <= EXACT_TOKENS,
        };
        // The reference is useful only where the calls are not shown.
        if turn.is_exact {
            turn.declaration = None;
        }
    }
}

/// Failures show their details once; work that succeeded later is folded.
fn drop_noise(turns: &mut [TranscriptTurn]) {
    // The newest turn stays complete: the model has not seen it.
    let newest = protocols(turns).count().saturating_sub(1);
    let mut done: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for (index, turn) in protocols(turns).enumerate() {
        for call in turn
            .calls
            .iter()
            .filter(|call| call.status == GraphStatus::Completed.as_str())
        {
            // By id and by work: a repeated action may have another name.
            for name in [&call.id, &call.work] {
                done.insert(name.clone(), (index, turn.run_id.clone()));
            }
        }
    }
    for (index, turn) in protocols(turns).enumerate().take(newest) {
        for call in &mut turn.calls {
            let later = [&call.id, &call.work]
                .into_iter()
                .find_map(|name| done.get(name));
            let later = later.filter(|(at, _)| *at > index && call.status != "completed");
            let is_failed = call.status == GraphStatus::Failed.as_str();
            if let Some((_, run)) = later {
                fold(call);
                let line = format!("Earlier attempt superseded by {run}");
                call.reason = Some(("superseded".to_owned(), line));
            } else if is_failed {
                let code = call.reason.take().map(|(code, _)| code).unwrap_or_default();
                fold(call);
                call.reason = Some((code, String::new()));
            }
        }
    }
}

fn fold(call: &mut CallTurn) {
    call.text.clear();
    call.shown = None;
    call.artifacts.clear();
}

/// Over budget: contents of the oldest brief turns go first, then these turns become one list.
fn fit(turns: &mut Vec<TranscriptTurn>, max_tokens: usize, count: TokenCounter<'_>) {
    let mut sizes: Vec<usize> = turns.iter().map(|turn| size(turn, count)).collect();
    let mut total: usize = sizes.iter().sum();
    let mut emptied = Vec::new();
    // Oldest first: recent results are more useful.
    for index in 0..turns.len() {
        if total <= max_tokens {
            break;
        }
        let TranscriptTurn::Protocol(turn) = &mut turns[index] else {
            continue;
        };
        // Exact turns are fresh, and few.
        if turn.is_exact {
            continue;
        }
        for call in &mut turn.calls {
            call.text.clear();
        }
        emptied.push(index);
        total -= sizes[index];
        sizes[index] = size(&turns[index], count);
        total += sizes[index];
    }
    if total <= max_tokens || emptied.is_empty() {
        return;
    }
    // From the end, so that the indices stay valid.
    let mut lines = Vec::new();
    for index in emptied.iter().rev() {
        if let TranscriptTurn::Protocol(turn) = turns.remove(*index) {
            let calls = turn.calls.iter().rev();
            lines.extend(calls.map(|call| {
                let position = format!("runtime://runs/{}/actions/{}/output", turn.run_id, call.id);
                let status = call.status.clone();
                (status, position, call.does.clone())
            }));
        }
    }
    lines.reverse();
    let list = Notice {
        sentence: "Earlier work, oldest first:".to_owned(),
        lines,
    };
    turns.insert(emptied[0], TranscriptTurn::Notice(list));
}

fn size(turn: &TranscriptTurn, count: TokenCounter<'_>) -> usize {
    count(&render(std::slice::from_ref(turn)))
}
