//! Checks of one plain run, result by result.

use std::time::Duration;

use domain::manifest::AcceptedManifest;
use domain::run::is_reserved_code;

use super::check_harness::CheckHarness;
use super::recording::{End, FaultKind, RecordedResponse, RunRecording};
use super::report::{ContractCheck, FindingCollector, counted};
use runner_client::ResultFormat;
use runs::reader::Deviation;

const ACCEPTS: ContractCheck = ContractCheck {
    id: "signature.accepts_signed",
    expected: "a run with a right signature is taken",
    advice: "check secret and clock: HMAC-SHA256 over {webhook-id}.{webhook-timestamp}.{body} with the \
             base64 text after whsec_ decoded as the key, and the digest as base64 after v1,",
};
const FIRST_BYTE: ContractCheck = ContractCheck {
    id: "stream.first_byte",
    expected: "the answer begins within 30 s",
    advice: "send the head and a comment line at once, then work",
};
const STATUS: ContractCheck = ContractCheck {
    id: "stream.status",
    expected: "a run is answered with 200, or with 202 if results are appended",
    advice: "answer 200 and report an error as run.failed; 429 or 503 with Retry-After when you are full",
};
const CONTENT_TYPE: ContractCheck = ContractCheck {
    id: "stream.content_type",
    expected: "text/event-stream, application/x-ndjson or application/json, with no content encoding",
    advice: "set Content-Type, and do not compress: the request has Accept-Encoding: identity",
};
const RESULTS: ContractCheck = ContractCheck {
    id: "stream.results",
    expected: "each event is one AgentRunResult: UTF-8, JSON, run_id, type, data",
    advice: "write one JSON object on one data line; openapi/runner.json has the schema",
};
const FRAMING: ContractCheck = ContractCheck {
    id: "stream.framing",
    expected: "the body has the framing of its Content-Type: events end with an empty line, heartbeats are comment lines",
    advice: "write `data: ` and the result on one line, then an empty line; for a heartbeat write `: hi` and an empty line",
};
const TEXT: ContractCheck = ContractCheck {
    id: "stream.text",
    expected: "texts hold complete characters: no half of a surrogate pair, no U+0000, UTF-8 throughout",
    advice: "cut texts between characters, not between bytes or UTF-16 units",
};
const FAILURE_CODE: ContractCheck = ContractCheck {
    id: "stream.failure_code",
    expected: "run.failed has a code of the runner's own",
    advice: "choose another code: host., timeout, cancelled and the gateway's runner. codes are reserved",
};
const LIMITS: ContractCheck = ContractCheck {
    id: "stream.limits",
    expected: "lines, events and the run stay within ctx.runtime.metadata.limits",
    advice: "split long texts into pieces; keep large results outside and send a reference",
};
const RUN_ID: ContractCheck = ContractCheck {
    id: "stream.run_id",
    expected: "each result names the run: context.run_id",
    advice: "take run_id from this request's context, never from a variable that runs share",
};
const SEQUENCE: ContractCheck = ContractCheck {
    id: "stream.sequence",
    expected: "sequences, where they are sent, rise strictly",
    advice: "count from 1 for each run, or leave sequence out",
};
const DENSE: ContractCheck = ContractCheck {
    id: "stream.sequence_dense",
    expected: "sequences are 1, 2, 3 … without hole and repetition",
    advice: "count from 1 for each run: the gateway notes holes and drops repetitions",
};
const PAYLOADS: ContractCheck = ContractCheck {
    id: "stream.payloads",
    expected: "the data of each known type fits its schema",
    advice: "compare the payload with openapi/runner.json",
};
const STATE_KEYS: ContractCheck = ContractCheck {
    id: "stream.state_keys",
    expected: "state.updated writes to a granted scope, to keys that do not begin with host.",
    advice: "choose another key; request the scope in permissions.state, and look into the event's parties",
};
const NO_TOKEN: ContractCheck = ContractCheck {
    id: "stream.no_token",
    expected: "the run token does not appear in the answer",
    advice: "never echo the request's host object, not in errors either",
};
const TERMINAL: ContractCheck = ContractCheck {
    id: "stream.terminal",
    expected: "the stream ends with run.completed or run.failed",
    advice: "end every run with one of the two, also when your code throws",
};
const ONE_TERMINAL: ContractCheck = ContractCheck {
    id: "stream.one_terminal",
    expected: "there is one terminal",
    advice: "return after the first run.completed or run.failed",
};
const NOTHING_AFTER: ContractCheck = ContractCheck {
    id: "stream.nothing_after_terminal",
    expected: "no result follows the terminal",
    advice: "send everything before run.completed: what comes later is dropped",
};
const CLOSES: ContractCheck = ContractCheck {
    id: "stream.closes",
    expected: "the body ends within 2 s after the terminal",
    advice: "close the response after the terminal; the gateway cuts it",
};
const SILENCE: ContractCheck = ContractCheck {
    id: "stream.silence",
    expected: "the stream is never silent for 60 s; a runner that appends renews its lease in time",
    advice: "send a comment line (`: hi`) every 15 s while you work; after a 202, POST {base_url}/run/results or \
             /run/heartbeat",
};
const OUTPUT: ContractCheck = ContractCheck {
    id: "stream.output",
    expected: "a message is answered by a message",
    advice: "send message.delta or message.completed before run.completed, or end with run.failed",
};
const COMPLETES: ContractCheck = ContractCheck {
    id: "stream.completes",
    expected: "the test message ends in run.completed",
    advice: "look into the log of the runner, or try another --text or --config",
};
const PIECES: ContractCheck = ContractCheck {
    id: "stream.pieces",
    expected: "the pieces of message.delta make the text of message.completed",
    advice: "send increments in chunk.content; if each one is the full text so far, register the \
             endpoint with delta_mode = \"snapshot\" (--delta-mode snapshot)",
};
const STREAMING: ContractCheck = ContractCheck {
    id: "stream.capability",
    expected: "message.delta comes from runners with the capability streaming",
    advice: "say \"streaming\": true in the manifest",
};

pub(super) const ALL: [&ContractCheck; 24] = [
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
pub(super) async fn check(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) -> RunRecording {
    let recording = check_harness
        .play(runner, &check_harness.message(&check_harness.options.text))
        .await;
    if check_head(&recording, book) {
        check_framing(&recording, book);
        check_faults(&recording, book);
        check_end(&recording, book);
        check_speech(&recording, runner, book);
    }
    book.skip_open(&[&ALL], "the run was not taken");
    recording
}

/// Fails a runner of which no run completed, in all checks. Else a failed plain run is a warning.
pub(super) fn fail_completion(book: &mut FindingCollector<'_>) {
    book.fail_warned(&COMPLETES, "no run completed");
}

/// Reports on the head. Returns true if there is a body to check.
fn check_head(recording: &RunRecording, book: &mut FindingCollector<'_>) -> bool {
    let (format, after) = match &recording.answer {
        RecordedResponse::Started(format, after) => (Some(format), *after),
        RecordedResponse::Deferred(after) => (None, *after),
        RecordedResponse::Silent(after) => {
            book.fail(&FIRST_BYTE, format!("nothing in {}", seconds(*after)));
            return false;
        }
        // A signed run that is refused so points to the secret or the clock, not to the stream.
        RecordedResponse::Refused(refused) if matches!(refused.status.as_u16(), 401 | 403) => {
            book.fail(&ACCEPTS, refused.in_words());
            return false;
        }
        RecordedResponse::Refused(refused) => {
            let wait = refused.retry_after.map_or(String::new(), |wait| {
                format!(", Retry-After {}", seconds(wait))
            });
            book.fail(&STATUS, format!("{}{wait}", refused.in_words()));
            return false;
        }
        RecordedResponse::BadContentType(content_type) => {
            book.fail(&CONTENT_TYPE, content_type);
            return false;
        }
        RecordedResponse::Broken(error) => {
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
fn check_framing(recording: &RunRecording, book: &mut FindingCollector<'_>) {
    let of_framing = |deviation: &&Deviation| **deviation != Deviation::Text;
    let notes = recording.deviations.iter().filter(of_framing);
    let notes: Vec<_> = notes.map(|deviation| deviation.note()).collect();
    match recording
        .framing_fault
        // A framing fault matters only if the run lost its end by it.
        .filter(|_| recording.end == End::Truncated)
    {
        _ if recording.is_deferred() => {
            book.skip(&FRAMING, "results that are appended are in no body");
        }
        Some(fault) => book.fail(&FRAMING, fault),
        None if notes.is_empty() => book.pass(&FRAMING, "it is"),
        None => book.warn(&FRAMING, notes.join("; ")),
    }
    if recording.deviations.contains(&Deviation::Text) {
        book.warn(&TEXT, Deviation::Text.note());
    } else {
        book.pass(&TEXT, "they do");
    }
}

fn check_faults(recording: &RunRecording, book: &mut FindingCollector<'_>) {
    let good = counted(recording.taken, "result");
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
        // A check of the end cannot pass on a run without one.
        let of_terminal = [&ONE_TERMINAL, &NOTHING_AFTER, &OUTPUT].contains(&check);
        match recording.faults.iter().find(|fault| fault.kind == kind) {
            Some(fault) => book.fail(check, &fault.seen),
            None if of_terminal && !recording.has_ended() => book.skip(check, "the run has no end"),
            None => book.pass(check, &good),
        }
    }
    let fault = |kind| recording.faults.iter().find(|fault| fault.kind == kind);
    match (fault(FaultKind::Limit), fault(FaultKind::TruncatedPart)) {
        (Some(fault), _) => book.fail(&LIMITS, &fault.seen),
        (None, Some(fault)) => book.warn(&LIMITS, &fault.seen),
        (None, None) => book.pass(&LIMITS, &good),
    }
    match (recording.gaps, recording.duplicates) {
        (0, 0) => book.pass(&DENSE, &good),
        (gaps, twice) => {
            let (gaps, twice) = (counted(gaps, "hole"), counted(twice, "repetition"));
            book.warn(&DENSE, format!("{gaps}, {twice}"));
        }
    }
    if recording.leaked {
        book.fail(&NO_TOKEN, "it appears there");
    } else {
        book.pass(&NO_TOKEN, "it does not");
    }
}

fn check_end(recording: &RunRecording, book: &mut FindingCollector<'_>) {
    let silence = if recording.is_deferred() {
        "results or heartbeats came in time".to_owned()
    } else {
        format!("at most {}", seconds(recording.longest_silence))
    };
    match recording.end {
        End::Idle => book.fail(
            &SILENCE,
            format!("silent for {}", seconds(recording.longest_silence)),
        ),
        End::Going if recording.is_deferred() => {
            book.skip(&SILENCE, "it was left before its lease could be over");
        }
        _ => book.pass(&SILENCE, silence),
    }
    match &recording.end {
        End::Completed | End::Failed { .. } => book.pass(&TERMINAL, recording.in_words()),
        End::Truncated | End::Going => book.fail(&TERMINAL, recording.in_words()),
        // Blaming the terminal as well would report one fault twice.
        End::Idle | End::Violation | End::NotStarted => {
            book.skip(&TERMINAL, "the gateway would have ended the run before");
        }
    }
    match &recording.end {
        End::Completed => book.pass(&COMPLETES, "it did"),
        End::Failed { .. } => book.warn(&COMPLETES, recording.in_words()),
        _ => book.skip(&COMPLETES, "the run has no end"),
    }
    match &recording.end {
        End::Failed { code, .. } if is_reserved_code(code) => {
            book.warn(
                &FAILURE_CODE,
                format!("{code}: the run ends as runner.error"),
            );
        }
        _ => book.pass(&FAILURE_CODE, "it has, where it failed"),
    }
    match recording.has_ended() {
        // Appended results have no body that could stay open.
        _ if recording.is_deferred() => {
            book.skip(&CLOSES, "results that are appended are in no body");
        }
        false => book.skip(&CLOSES, "the run has no end"),
        true if recording.closed => book.pass(&CLOSES, "it does"),
        true => book.warn(&CLOSES, "the body was still open"),
    }
}

fn check_speech(
    recording: &RunRecording,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    let run_text = &recording.run_text;
    match run_text.disagreement() {
        None if run_text.compared() > 0 => book.pass(&PIECES, "they do"),
        None => book.skip(&PIECES, "no message came both in pieces and in full"),
        Some(found) => {
            let seen = format!("pieces {:?}, full text {:?}", found.pieces, found.complete);
            // The common mistake gets its own advice; other differences may be intended, such as corrections.
            if found.snapshots {
                book.fail(
                    &PIECES,
                    format!("each piece is the full text so far: {seen}"),
                );
            } else {
                book.warn(&PIECES, seen);
            }
        }
    }
    match (run_text.deltas(), runner.manifest.capabilities.streaming) {
        (0, _) => book.skip(&STREAMING, "no message.delta came"),
        (_, true) => book.pass(&STREAMING, "it is declared"),
        (count, false) => {
            book.warn(
                &STREAMING,
                format!("{} from a runner without it", counted(count, "piece")),
            );
        }
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
