//! Checks of one plain run, result by result.

use std::time::Duration;

use domain::manifest::AcceptedManifest;
use domain::run::is_reserved_code;

use super::kit::Kit;
use super::report::{Book, Check};
use super::trace::{Answer, End, FaultKind, Trace};
use runner_client::ResultFormat;
use runs::reader::Deviation;

const ACCEPTS: Check = Check {
    id: "signature.accepts_signed",
    expected: "a run with a right signature is taken",
    advice: "check secret and clock: HMAC-SHA256 over {webhook-id}.{webhook-timestamp}.{body} with the \
             bytes behind whsec_, as base64 behind v1,",
};
const FIRST_BYTE: Check = Check {
    id: "stream.first_byte",
    expected: "the answer begins within 30 s",
    advice: "send the head and a comment line at once, then work",
};
const STATUS: Check = Check {
    id: "stream.status",
    expected: "a run is answered with 200, or with 202 if results are appended",
    advice: "answer 200 and tell what went wrong as run.failed; 429 or 503 with Retry-After when you are full",
};
const CONTENT_TYPE: Check = Check {
    id: "stream.content_type",
    expected: "text/event-stream, application/x-ndjson or application/json, with no content encoding",
    advice: "set Content-Type, and do not compress: the request says Accept-Encoding: identity",
};
const RESULTS: Check = Check {
    id: "stream.results",
    expected: "each event is one AgentRunResult: UTF-8, JSON, run_id, type, data",
    advice: "write one JSON object on one data line; openapi/runner.json has the schema",
};
const FRAMING: Check = Check {
    id: "stream.framing",
    expected: "the body is framed as Content-Type says: events end with an empty line, heartbeats are comment lines",
    advice: "write `data: ` and the result on one line, then an empty line; for a heartbeat write `: hi` and an empty line",
};
const TEXT: Check = Check {
    id: "stream.text",
    expected: "texts hold whole characters: no half of a surrogate pair, no U+0000, UTF-8 throughout",
    advice: "cut texts between characters, not between bytes or UTF-16 units",
};
const FAILURE_CODE: Check = Check {
    id: "stream.failure_code",
    expected: "run.failed has a code of the runner's own",
    advice: "choose another code: host., timeout, cancelled and the gateway's runner. codes are reserved",
};
const LIMITS: Check = Check {
    id: "stream.limits",
    expected: "lines, events and the run stay within ctx.runtime.metadata.limits",
    advice: "split long texts into pieces; keep large results outside and send a reference",
};
const RUN_ID: Check = Check {
    id: "stream.run_id",
    expected: "each result names the run: context.run_id",
    advice: "take run_id from this request's context, never from a variable that runs share",
};
const SEQUENCE: Check = Check {
    id: "stream.sequence",
    expected: "sequences, where they are sent, rise strictly",
    advice: "count from 1 for each run, or leave sequence out",
};
const DENSE: Check = Check {
    id: "stream.sequence_dense",
    expected: "sequences are 1, 2, 3 … without hole and repetition",
    advice: "count from 1 for each run: the gateway notes holes and drops repetitions",
};
const PAYLOADS: Check = Check {
    id: "stream.payloads",
    expected: "the data of each known type fits its schema",
    advice: "compare the payload with openapi/runner.json",
};
const STATE_KEYS: Check = Check {
    id: "stream.state_keys",
    expected: "state.updated writes to a granted scope, to keys that do not begin with host.",
    advice: "choose another key; look into ctx.context.available_apis.state and the event's parties",
};
const NO_TOKEN: Check = Check {
    id: "stream.no_token",
    expected: "the run token stands nowhere in the answer",
    advice: "never echo the request's host object, not in errors either",
};
const TERMINAL: Check = Check {
    id: "stream.terminal",
    expected: "the stream ends with run.completed or run.failed",
    advice: "end every run with one of the two, also when your code throws",
};
const ONE_TERMINAL: Check = Check {
    id: "stream.one_terminal",
    expected: "there is one terminal",
    advice: "return after the first run.completed or run.failed",
};
const NOTHING_AFTER: Check = Check {
    id: "stream.nothing_after_terminal",
    expected: "no result follows the terminal",
    advice: "send everything before run.completed: what comes later is dropped",
};
const CLOSES: Check = Check {
    id: "stream.closes",
    expected: "the body ends within 2 s after the terminal",
    advice: "close the response after the terminal; the gateway cuts it",
};
const SILENCE: Check = Check {
    id: "stream.silence",
    expected: "the stream is never silent for 60 s; a runner that appends renews its lease in time",
    advice: "send a comment line (`: hi`) every 15 s while you work; behind a 202, POST {base_url}/run/results or \
             /run/heartbeat",
};
const OUTPUT: Check = Check {
    id: "stream.output",
    expected: "a message is answered by a message",
    advice: "send message.delta or message.completed before run.completed, or end with run.failed",
};
const COMPLETES: Check = Check {
    id: "stream.completes",
    expected: "the test message ends in run.completed",
    advice: "try another --text or --config; a runner that needs models or tools has none here",
};
const PIECES: Check = Check {
    id: "stream.pieces",
    expected: "the pieces of message.delta make the text of message.completed",
    advice: "send increments in chunk.content; where they are the whole text so far, register the \
             endpoint with delta_mode = \"snapshot\" (--delta-mode snapshot)",
};
const STREAMING: Check = Check {
    id: "stream.capability",
    expected: "message.delta comes from runners with the capability streaming",
    advice: "say \"streaming\": true in the manifest",
};

pub(super) const ALL: [&Check; 24] = [
    &ACCEPTS,
    &FIRST_BYTE,
    &STATUS,
    &CONTENT_TYPE,
    &RESULTS,
    &FRAMING,
    &TEXT,
    &LIMITS,
    &RUN_ID,
    &SEQUENCE,
    &DENSE,
    &PAYLOADS,
    &STATE_KEYS,
    &NO_TOKEN,
    &TERMINAL,
    &ONE_TERMINAL,
    &NOTHING_AFTER,
    &CLOSES,
    &SILENCE,
    &OUTPUT,
    &COMPLETES,
    &FAILURE_CODE,
    &PIECES,
    &STREAMING,
];

/// Checks a plain run. Returns its recording.
pub(super) async fn check(kit: &Kit, runner: &AcceptedManifest, book: &mut Book<'_>) -> Trace {
    let trace = kit.play(runner, &kit.message(&kit.options.text)).await;
    if check_head(&trace, book) {
        check_framing(&trace, book);
        check_faults(&trace, book);
        check_end(&trace, book);
        check_speech(&trace, runner, book);
    }
    book.skip_open(&[&ALL], "the run was not taken");
    trace
}

/// Whether there is a body to check.
fn check_head(trace: &Trace, book: &mut Book<'_>) -> bool {
    let (format, after) = match &trace.answer {
        Answer::Started(format, after) => (Some(format), *after),
        Answer::Deferred(after) => (None, *after),
        Answer::Silent(after) => {
            book.fail(&FIRST_BYTE, format!("nothing in {}", seconds(*after)));
            return false;
        }
        Answer::Refused(status, _) if matches!(status.as_u16(), 401 | 403) => {
            book.fail(&ACCEPTS, format!("HTTP {}", status.as_u16()));
            return false;
        }
        Answer::Refused(status, wait) => {
            let wait = wait.map_or(String::new(), |wait| {
                format!(", Retry-After {}", seconds(wait))
            });
            book.fail(&STATUS, format!("HTTP {}{wait}", status.as_u16()));
            return false;
        }
        Answer::BadContentType(told) => {
            book.fail(&CONTENT_TYPE, told);
            return false;
        }
        Answer::Broken(error) => {
            book.fail(&STATUS, format!("no answer: {error}"));
            return false;
        }
    };
    book.pass(&ACCEPTS, "taken");
    book.pass(&FIRST_BYTE, format!("after {}", seconds(after)));
    let Some(format) = format else {
        book.pass(&STATUS, "HTTP 202: it appends its results");
        book.skip(&CONTENT_TYPE, "a 202 needs none");
        return true;
    };
    book.pass(&STATUS, "HTTP 200");
    let format = match format {
        ResultFormat::EventStream => "text/event-stream",
        ResultFormat::JsonLines => "application/x-ndjson",
        ResultFormat::Json => "application/json",
    };
    book.pass(&CONTENT_TYPE, format);
    true
}

/// Deviations that the gateway accepts.
fn check_framing(trace: &Trace, book: &mut Book<'_>) {
    let of_framing = |deviation: &&Deviation| **deviation != Deviation::Text;
    let notes = trace.deviations.iter().filter(of_framing);
    let notes: Vec<_> = notes.map(|deviation| deviation.note()).collect();
    match trace.framing_fault.filter(|_| trace.end == End::Truncated) {
        _ if trace.is_deferred() => book.skip(&FRAMING, "results that are appended are in no body"),
        Some(fault) => book.fail(&FRAMING, fault),
        None if notes.is_empty() => book.pass(&FRAMING, "it is"),
        None => book.warn(&FRAMING, notes.join("; ")),
    }
    if trace.deviations.contains(&Deviation::Text) {
        book.warn(&TEXT, Deviation::Text.note());
    } else {
        book.pass(&TEXT, "they do");
    }
}

fn check_faults(trace: &Trace, book: &mut Book<'_>) {
    let good = format!("{} results", trace.taken);
    for (check, kind) in [
        (&RESULTS, FaultKind::Result),
        (&RUN_ID, FaultKind::RunId),
        (&SEQUENCE, FaultKind::Sequence),
        (&PAYLOADS, FaultKind::Payload),
        (&STATE_KEYS, FaultKind::StateKey),
        (&ONE_TERMINAL, FaultKind::SecondTerminal),
        (&NOTHING_AFTER, FaultKind::AfterTerminal),
        (&OUTPUT, FaultKind::NoOutput),
    ] {
        let of_terminal = [&ONE_TERMINAL, &NOTHING_AFTER, &OUTPUT].contains(&check);
        match trace.faults.iter().find(|fault| fault.kind == kind) {
            Some(fault) => book.fail(check, &fault.seen),
            None if of_terminal && !trace.has_ended() => book.skip(check, "the run has no end"),
            None => book.pass(check, &good),
        }
    }
    let fault = |kind| trace.faults.iter().find(|fault| fault.kind == kind);
    match (fault(FaultKind::Limit), fault(FaultKind::Shortened)) {
        (Some(fault), _) => book.fail(&LIMITS, &fault.seen),
        (None, Some(fault)) => book.warn(&LIMITS, &fault.seen),
        (None, None) => book.pass(&LIMITS, &good),
    }
    match (trace.gaps, trace.duplicates) {
        (0, 0) => book.pass(&DENSE, &good),
        (gaps, twice) => book.warn(&DENSE, format!("{gaps} holes, {twice} repetitions")),
    }
    if trace.leaked {
        book.fail(&NO_TOKEN, "it stands there");
    } else {
        book.pass(&NO_TOKEN, "it does not");
    }
}

fn check_end(trace: &Trace, book: &mut Book<'_>) {
    let silence = if trace.is_deferred() {
        "heard of in time".to_owned()
    } else {
        format!("at most {}", seconds(trace.longest_silence))
    };
    match trace.end {
        End::Idle => book.fail(
            &SILENCE,
            format!("silent for {}", seconds(trace.longest_silence)),
        ),
        End::Going if trace.is_deferred() => {
            book.skip(&SILENCE, "it was left before its lease could be over");
        }
        _ => book.pass(&SILENCE, silence),
    }
    match &trace.end {
        End::Completed | End::Failed { .. } => book.pass(&TERMINAL, trace.in_words()),
        End::Truncated | End::Going => book.fail(&TERMINAL, trace.in_words()),
        End::Idle | End::Violation | End::NotStarted => {
            book.skip(&TERMINAL, "the gateway would have ended the run before");
        }
    }
    match &trace.end {
        End::Completed => book.pass(&COMPLETES, "it did"),
        End::Failed { .. } => book.warn(&COMPLETES, trace.in_words()),
        _ => book.skip(&COMPLETES, "the run has no end"),
    }
    match &trace.end {
        End::Failed { code, .. } if is_reserved_code(code) => {
            book.warn(
                &FAILURE_CODE,
                format!("{code}: the run ends as runner.error"),
            );
        }
        _ => book.pass(&FAILURE_CODE, "it has, where it failed"),
    }
    match trace.has_ended() {
        _ if trace.is_deferred() => book.skip(&CLOSES, "results that are appended are in no body"),
        false => book.skip(&CLOSES, "the run has no end"),
        true if trace.closed => book.pass(&CLOSES, "it does"),
        true => book.warn(&CLOSES, "the body was still open"),
    }
}

fn check_speech(trace: &Trace, runner: &AcceptedManifest, book: &mut Book<'_>) {
    let speech = &trace.speech;
    match speech.disagreement() {
        None if speech.compared() > 0 => book.pass(&PIECES, "they do"),
        None => book.skip(&PIECES, "no message came both in pieces and whole"),
        Some(found) => {
            let seen = format!("pieces {:?}, whole {:?}", found.pieces, found.whole);
            if found.snapshots {
                book.fail(
                    &PIECES,
                    format!("each piece is the whole text so far: {seen}"),
                );
            } else {
                book.warn(&PIECES, seen);
            }
        }
    }
    match (speech.deltas(), runner.manifest.capabilities.streaming) {
        (0, _) => book.skip(&STREAMING, "no message.delta came"),
        (_, true) => book.pass(&STREAMING, "it is said"),
        (count, false) => {
            book.warn(
                &STREAMING,
                format!("{count} pieces from a runner without it"),
            );
        }
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
