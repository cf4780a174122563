//! Reads a transcript back. For any content, it finds exactly the turns that were printed.

use crate::graph::GraphStatus;
use crate::transcript::render::{ANSWER, ATTACHMENT, NOTICE, PROTOCOL, USER};
use crate::transcript::{Attachment, CallTurn, Notice, ProtocolTurn, TranscriptTurn};

/// The turns of a transcript; `None` where the text does not follow the grammar.
pub fn parse(text: &str) -> Option<Vec<TranscriptTurn>> {
    let mut lines = LineCursor { rest: text };
    let mut turns = Vec::new();
    while !lines.rest.is_empty() {
        let head = lines.next()?;
        let number = head.strip_prefix("<turn index=\"")?.strip_suffix("\">")?;
        // Dense numbers: a turn that text pretends to be has no valid one.
        if number.parse() != Ok(turns.len() + 1) {
            return None;
        }
        // Printed text escapes this tag, so the first one ends the turn.
        let end = lines.rest.find("</turn>\n")?;
        let (body, rest) = lines.rest.split_at(end);
        lines.rest = rest.strip_prefix("</turn>\n")?;
        turns.push(turn(body)?);
    }
    Some(turns)
}

struct LineCursor<'a> {
    rest: &'a str,
}

impl<'a> LineCursor<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (line, rest) = self.rest.split_once('\n')?;
        self.rest = rest;
        Some(line)
    }

    fn blank(&mut self) -> Option<()> {
        self.next()?.is_empty().then_some(())
    }

    /// The value of the next line when it has this label.
    fn labelled(&mut self, label: &str) -> Option<&'a str> {
        let (line, rest) = self.rest.split_once('\n')?;
        let value = line.strip_prefix(label)?.strip_prefix(": ")?;
        self.rest = rest;
        Some(value)
    }

    /// A fenced content and the blank line after it; empty without a fence.
    fn fenced(&mut self, info: &str) -> Option<String> {
        let Some((line, rest)) = self.rest.split_once('\n') else {
            return Some(String::new());
        };
        let Some(fence) = line.strip_suffix(info).filter(|fence| is_fence(fence)) else {
            return Some(String::new());
        };
        let close = format!("\n{fence}\n\n");
        // The fence is longer than any run inside, so the first match closes it.
        let end = rest.find(&close)?;
        self.rest = &rest[end + close.len()..];
        Some(rest[..end].to_owned())
    }
}

fn is_fence(text: &str) -> bool {
    text.len() >= 3 && text.bytes().all(|byte| byte == b'`')
}

fn turn(body: &str) -> Option<TranscriptTurn> {
    let mut lines = LineCursor { rest: body };
    let head = lines.next()?;
    lines.blank()?;
    match head {
        USER => user(lines.rest),
        ANSWER => {
            let text = lines.rest.strip_suffix('\n')?.to_owned();
            Some(TranscriptTurn::Answer { text })
        }
        NOTICE => notice(lines),
        PROTOCOL => protocol(lines),
        _ => None,
    }
}

fn user(body: &str) -> Option<TranscriptTurn> {
    let mut text = body.strip_suffix('\n')?;
    let mut attachments = Vec::new();
    // From the end: a line of the request never begins like an attachment.
    while let Some((before, last)) = text.rsplit_once('\n')
        && let Some(attachment) = attachment(last)
    {
        attachments.insert(0, attachment);
        text = before;
    }
    let text = text.to_owned();
    Some(TranscriptTurn::User { text, attachments })
}

fn attachment(line: &str) -> Option<Attachment> {
    let rest = line.strip_prefix(ATTACHMENT)?;
    // From the right: names may have blanks and commas.
    let (head, reference) = rest.rsplit_once(' ')?;
    let (head, size) = head.strip_suffix(')')?.rsplit_once(", ")?;
    let (name, kind) = head.rsplit_once(" (")?;
    Some(Attachment {
        name: name.to_owned(),
        kind: kind.to_owned(),
        size: size.parse().ok()?,
        reference: reference.to_owned(),
    })
}

fn notice(mut lines: LineCursor<'_>) -> Option<TranscriptTurn> {
    let sentence = lines.next()?.to_owned();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let (_, rest) = line.split_once(". `")?;
        let (code, rest) = rest.split_once("` at `")?;
        // An empty text may have lost the blank after the colon.
        let (position, line) = rest
            .split_once("`: ")
            .or_else(|| Some((rest.strip_suffix("`:")?, "")))?;
        found.push((code.to_owned(), position.to_owned(), line.to_owned()));
    }
    Some(TranscriptTurn::Notice(Notice {
        sentence,
        lines: found,
    }))
}

fn protocol(mut lines: LineCursor<'_>) -> Option<TranscriptTurn> {
    let run_id = lines.labelled("run_id")?;
    let run_id = run_id.strip_prefix('`')?.strip_suffix('`')?.to_owned();
    let purpose = lines.labelled("Purpose")?.to_owned();
    let status = status(lines.labelled("Status")?)?;
    let declaration = lines.labelled("Declaration").map(str::to_owned);
    let continues = lines.labelled("Continues").map(str::to_owned);
    lines.blank()?;
    let mut turn = ProtocolTurn {
        run_id,
        purpose,
        status,
        declaration,
        continues,
        calls: Vec::new(),
        next: None,
        tokens: 0,
        is_exact: lines.rest.starts_with("### Call "),
    };
    loop {
        if let Some(next) = lines.labelled("Next") {
            turn.next = Some(next.to_owned());
        }
        if lines.rest.is_empty() {
            return Some(TranscriptTurn::Protocol(turn));
        }
        turn.calls.push(call(&mut lines, turn.is_exact)?);
    }
}

fn status(word: &str) -> Option<GraphStatus> {
    let all = [
        GraphStatus::Pending,
        GraphStatus::Running,
        GraphStatus::Waiting,
        GraphStatus::Blocked,
        GraphStatus::Completed,
        GraphStatus::Failed,
        GraphStatus::Canceled,
    ];
    all.into_iter().find(|status| status.as_str() == word)
}

fn list(text: &str) -> Vec<String> {
    text.split(", ").map(str::to_owned).collect()
}

fn call(lines: &mut LineCursor<'_>, is_exact: bool) -> Option<CallTurn> {
    let mut call = CallTurn::default();
    if is_exact {
        lines
            .next()?
            .strip_prefix("### Call ")?
            .clone_into(&mut call.id);
        lines.blank()?;
        let (kind, target) = lines.next()?.split_once(": `")?;
        kind.clone_into(&mut call.kind);
        target.strip_suffix('`')?.clone_into(&mut call.target);
        lines
            .labelled("Does")
            .unwrap_or_default()
            .clone_into(&mut call.does);
        call.after = lines.labelled("After").map(list).unwrap_or_default();
        call.when = lines.labelled("When").map(str::to_owned);
        lines.blank()?;
        call.arguments = lines.fenced("json")?;
    }
    lines
        .next()?
        .strip_prefix("### Result for ")?
        .clone_into(&mut call.id);
    lines.blank()?;
    if !is_exact {
        lines
            .labelled("Does")
            .unwrap_or_default()
            .clone_into(&mut call.does);
    }
    lines.labelled("Status")?.clone_into(&mut call.status);
    call.reason = lines.labelled("Reason").map(|reason| {
        let (code, line) = reason.split_once(", ").unwrap_or((reason, ""));
        (code.to_owned(), line.to_owned())
    });
    call.artifacts = lines.labelled("Artifacts").map(list).unwrap_or_default();
    call.shown = lines.labelled("Shown").map(str::to_owned);
    lines.blank()?;
    call.text = lines.fenced("md")?;
    Some(call)
}
