//! Prints turns.

use std::fmt::Write as _;

use crate::rules::CarrierMode;
use crate::transcript::{Attachment, CallTurn, Notice, ProtocolTurn, TranscriptTurn};

const USER: &str = "## User request";
const ANSWER: &str = "## Assistant answer";
const NOTICE: &str = "## Runtime notice";
const PROTOCOL: &str = "## Assistant protocol request and runtime observations";
const ATTACHMENT: &str = "Attachment: ";

/// All turns, numbered from 1.
pub fn render(turns: &[TranscriptTurn]) -> String {
    render_from(0, turns)
}

/// Turns that follow `before` others, numbered on: for one message per turn.
pub fn render_from(before: usize, turns: &[TranscriptTurn]) -> String {
    let mut text = String::new();
    for (index, turn) in turns.iter().enumerate() {
        let _ = writeln!(text, "<turn index=\"{}\">", before + index + 1);
        match turn {
            TranscriptTurn::User {
                text: request,
                attachments,
            } => {
                let _ = writeln!(text, "{USER}\n\n{}", request_text(request));
                for one in attachments {
                    let _ = writeln!(text, "{}", attachment_line(one));
                }
            }
            TranscriptTurn::Answer { text: answer } => {
                let _ = writeln!(text, "{ANSWER}\n\n{}", clean(answer));
            }
            TranscriptTurn::Notice(notice) => print_notice(notice, &mut text),
            TranscriptTurn::Protocol(turn) => print_protocol(turn, &mut text),
        }
        text.push_str("</turn>\n");
    }
    text
}

/// One line: name, media type, size and reference, each without the marks between them.
fn attachment_line(one: &Attachment) -> String {
    let label = match one_line(&one.name) {
        label if label.is_empty() => "file".to_owned(),
        label => label,
    };
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "/+.-_".contains(*letter);
    // Only these characters: the parentheses and the comma separate the parts.
    let kind: String = one.kind.chars().filter(is_plain).collect();
    let reference = one_line(&one.reference).replace(' ', "%20");
    format!("{ATTACHMENT}{label} ({kind}, {}) {reference}", one.size)
}

/// A request's text; its own lines never look like attachments.
fn request_text(text: &str) -> String {
    let text = clean(text);
    // Cheap test first: requests rarely have such lines.
    if !text.contains(ATTACHMENT) {
        return text;
    }
    let lines = text.split('\n').map(|line| {
        // A leading blank keeps the line from being read as an attachment.
        if line.starts_with(ATTACHMENT) {
            format!(" {line}")
        } else {
            line.to_owned()
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn print_notice(notice: &Notice, text: &mut String) {
    let _ = writeln!(text, "{NOTICE}\n\n{}", one_line(&notice.sentence));
    for (index, (code, position, line)) in notice.lines.iter().enumerate() {
        let (code, position, line) = (name(code), name(position), one_line(line));
        let _ = writeln!(text, "{}. `{code}` at `{position}`: {line}", index + 1);
    }
}

fn print_protocol(turn: &ProtocolTurn, text: &mut String) {
    let _ = writeln!(text, "{PROTOCOL}\n\nrun_id: `{}`", name(&turn.run_id));
    let _ = writeln!(text, "Purpose: {}", one_line(&turn.purpose));
    let _ = writeln!(text, "Status: {}", turn.status.as_str());
    for (label, value) in [
        ("Declaration", &turn.declaration),
        ("Continues", &turn.continues),
    ] {
        if let Some(value) = value {
            let _ = writeln!(text, "{label}: {}", one_line(value));
        }
    }
    text.push('\n');
    for call in &turn.calls {
        if turn.is_exact {
            print_call(call, text);
        }
        print_result(call, turn.is_exact, text);
    }
    if let Some(next) = &turn.next {
        let _ = writeln!(text, "Next: {}", one_line(next));
    }
}

fn print_call(call: &CallTurn, text: &mut String) {
    let _ = writeln!(text, "### Call {}\n", name(&call.id));
    let _ = writeln!(text, "{}: `{}`", one_line(&call.kind), name(&call.target));
    print_does(call, text);
    if !call.after.is_empty() {
        let after: Vec<_> = call.after.iter().map(|id| name(id)).collect();
        let _ = writeln!(text, "After: {}", after.join(", "));
    }
    if let Some(when) = &call.when {
        let _ = writeln!(text, "When: {}", one_line(when));
    }
    text.push('\n');
    print_fence("json", &call.arguments, text);
}

fn print_does(call: &CallTurn, text: &mut String) {
    let does = one_line(&call.does);
    if !does.is_empty() {
        let _ = writeln!(text, "Does: {does}");
    }
}

fn print_result(call: &CallTurn, is_exact: bool, text: &mut String) {
    let _ = writeln!(text, "### Result for {}\n", name(&call.id));
    if !is_exact {
        print_does(call, text);
    }
    let _ = writeln!(text, "Status: {}", one_line(&call.status));
    if let Some((code, line)) = &call.reason {
        let line = one_line(line);
        let comma = if line.is_empty() { "" } else { ", " };
        let _ = writeln!(text, "Reason: {}{comma}{line}", name(code));
    }
    if !call.artifacts.is_empty() {
        let artifacts: Vec<_> = call.artifacts.iter().map(|one| name(one)).collect();
        let _ = writeln!(text, "Artifacts: {}", artifacts.join(", "));
    }
    if let Some(shown) = call.shown.as_ref().filter(|_| is_exact) {
        let _ = writeln!(text, "Shown: {}", one_line(shown));
    }
    text.push('\n');
    print_fence("md", &call.text, text);
}

fn print_fence(info: &str, content: &str, text: &mut String) {
    let content = clean(content);
    if content.is_empty() {
        return;
    }
    // Longer than any run of back-ticks inside.
    let fence = fence_of(&content);
    let _ = write!(text, "{fence}{info}\n{content}\n{fence}\n\n");
}

/// The last user message: the instruction, which is no turn.
pub fn instruction(
    carrier: CarrierMode,
    waiting: Option<&str>,
    declarations_left: Option<u32>,
) -> String {
    let mut text = "Decide the next step from all turns above.\n".to_owned();
    text.push_str(match carrier {
        CarrierMode::Flat => "Reply with one AgentProtocolOutput call.\n",
        CarrierMode::Fenced => {
            "Reply with one fenced `json agent-protocol` block, or with the answer as text.\n"
        }
    });
    if let Some(waiting) = waiting {
        let _ = writeln!(text, "Waiting: {}", one_line(waiting));
    }
    if let Some(left) = declarations_left {
        let _ = writeln!(text, "Limits: {left} declarations left");
    }
    text
}

// --- foreign text: it can neither end a turn nor reorder characters ---

/// Direction marks, which make text look like something else.
fn is_bidi(letter: char) -> bool {
    matches!(letter, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Text without carriage returns, NUL and direction marks; `<turn` and `</turn` are escaped.
pub fn clean(text: &str) -> String {
    let plain: String = text
        .chars()
        .filter(|&letter| letter != '\r' && letter != '\0' && !is_bidi(letter))
        .collect();
    // Most texts have no tag.
    if !plain.contains('<') {
        return plain;
    }
    let mut escaped = String::with_capacity(plain.len());
    for (index, part) in plain.split('<').enumerate() {
        if index > 0 {
            // Without case: a model reads `</TURN>` as the same tag.
            let name = part.strip_prefix('/').unwrap_or(part).as_bytes();
            let is_turn = name.len() >= 4 && name[..4].eq_ignore_ascii_case(b"turn");
            escaped.push_str(if is_turn { "&lt;" } else { "<" });
        }
        escaped.push_str(part);
    }
    escaped
}

/// Clean text in one line, trimmed.
pub fn one_line(text: &str) -> String {
    let text = clean(text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// One line for a position between back-ticks.
fn name(text: &str) -> String {
    one_line(text).replace('`', "'")
}

/// A fence that no text inside can close: longer than its longest run of back-ticks.
fn fence_of(text: &str) -> String {
    let (mut longest, mut run) = (0, 0);
    for byte in text.bytes() {
        run = if byte == b'`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    "`".repeat((longest + 1).max(3))
}
