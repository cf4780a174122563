//! `runnel conform`: runners that keep the contract pass, and each violation is reported under its check id.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command as Blocking, Stdio};
use std::sync::Once;

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::bent::{BENT_ID, Bend, BentRunner};
use crate::support::listening::rust_echo;
use crate::support::node::typescript_echo;
use crate::support::programs::runnel;
use crate::support::python::python_echo;
use crate::support::runner::{SECRET, StubRunner};
use crate::support::{Directory, Printed, run, skipped};

/// Number of runners checked concurrently; checks mostly wait.
const AT_A_TIME: usize = 8;

async fn conform(url: &str, arguments: &[&str]) -> Printed {
    let mut command = Command::new(runnel());
    command
        .args(["conform", url, "--secret", "env:E2E_SECRET"])
        .args(arguments)
        .env("E2E_SECRET", SECRET)
        .env("E2E_HEADER", "opens-sesame");
    run(&mut command).await
}

/// The JSON report of a check. Asserts that the exit status agrees.
async fn report(url: &str, arguments: &[&str]) -> Value {
    let printed = conform(url, &[arguments, &["--json"]].concat()).await;
    let report: Value = serde_json::from_str(&printed.stdout)
        .unwrap_or_else(|error| panic!("{error}: {printed:?}"));
    let expected = i32::from(report["passed"] != true);
    assert_eq!(printed.status.code(), Some(expected), "{printed:?}");
    assert_eq!(printed.stderr, "");
    report
}

/// Check ids with this outcome.
fn with_outcome<'a>(report: &'a Value, outcome: &str) -> Vec<&'a str> {
    let checks = report["checks"].as_array().unwrap().iter();
    let with = checks.filter(|check| check["outcome"] == outcome);
    with.map(|check| check["id"].as_str().unwrap()).collect()
}

fn finding<'a>(report: &'a Value, id: &str) -> &'a Value {
    let mut checks = report["checks"].as_array().unwrap().iter();
    checks.find(|check| check["id"] == id).unwrap()
}

// --- runners that keep the contract ---

/// Single-file examples do not deduplicate run ids and set no deadline on calls; the contract requires neither.
const SMALL: [&str; 2] = ["signature.runs_an_id_once", "deadline.respected"];
const SMALL_SKIPS: [&str; 2] = ["discovery.health", "cancel.unsupported"];

/// Asserts that no check fails, and that exactly these checks warn or are skipped.
async fn passes(url: &str, arguments: &[&str], warnings: &[&str], skipped: &[&str]) {
    let report = report(url, arguments).await;
    let shown = serde_json::to_string_pretty(&report).unwrap();
    assert_eq!(with_outcome(&report, "fail"), [""; 0], "{shown}");
    assert_eq!(with_outcome(&report, "warn"), warnings, "{shown}");
    assert_eq!(with_outcome(&report, "skip"), skipped, "{shown}");
    assert_eq!(report["passed"], true);
    assert_eq!(report["counts"]["fail"], 0);
}

#[tokio::test]
async fn the_rust_example_keeps_the_contract() {
    let runner = rust_echo().await;
    passes(&runner.url, &[], &[], &["cancel.unsupported"]).await;
}

#[tokio::test]
async fn the_rust_example_keeps_the_contract_at_a_single_url() {
    let runner = rust_echo().await;
    let single = ["--mode", "single_url"];
    let skipped = ["discovery.health", "cancel.unsupported"];
    passes(&runner.url, &single, &[], &skipped).await;
}

#[tokio::test]
async fn the_python_example_keeps_the_contract() {
    let Some(runner) = python_echo().await else {
        return;
    };
    passes(&runner.url, &[], &SMALL, &SMALL_SKIPS).await;
}

#[tokio::test]
async fn the_typescript_example_keeps_the_contract() {
    let Some(runner) = typescript_echo().await else {
        return;
    };
    passes(&runner.url, &[], &SMALL, &SMALL_SKIPS).await;
}

// --- runners that violate it ---

/// A fault, the checks that fail, and the checks that warn.
type Row = (Bend, &'static [&'static str], &'static [&'static str]);

async fn check_rows(rows: &[Row]) {
    let checked = stream::iter(rows).map(|row| check_row(*row));
    let faults: Vec<_> = checked.buffer_unordered(AT_A_TIME).collect().await;
    let faults: Vec<_> = faults.into_iter().flatten().collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

async fn check_row((bend, fails, warns): Row) -> Option<String> {
    let runner = BentRunner::start(bend).await;
    let timeout = match bend {
        Bend::NeverAnswers | Bend::AppendsNothing | Bend::AppendsWithAHole => "5",
        _ => "30",
    };
    let report = report(&runner.url, &["--runner", BENT_ID, "--timeout", timeout]).await;
    let told = (with_outcome(&report, "fail"), with_outcome(&report, "warn"));
    (told != (fails.to_vec(), warns.to_vec()))
        .then(|| format!("{bend:?}: {told:?}\n{:#}", report["checks"]))
}

#[tokio::test]
async fn a_runner_that_breaks_nothing_passes_whatever_it_speaks() {
    check_rows(&[
        (Bend::Nothing, &[], &[]),
        (Bend::SpeaksLines, &[], &[]),
        (Bend::AnswersAtOnce, &[], &[]),
        (Bend::Appends, &[], &[]),
        (Bend::SaysItAllAlong, &[], &[]),
    ])
    .await;
}

#[tokio::test]
async fn who_answers_202_and_does_not_append_all_is_told_by_name() {
    check_rows(&[
        (Bend::AppendsNothing, &["stream.terminal"], &[]),
        (
            Bend::AppendsWithAHole,
            &["stream.terminal", "callbacks.bodies"],
            &[],
        ),
    ])
    .await;
}

/// The same checks apply to appended runs as to streams, except checks of a response body.
#[tokio::test]
async fn runs_that_are_appended_are_checked_like_those_of_a_stream() {
    let runner = BentRunner::start(Bend::Appends).await;
    let bodiless = [
        "stream.content_type",
        "stream.framing",
        "stream.closes",
        "deadline.respected",
    ];
    let mut skipped = Vec::from(bodiless);
    let streamed = BentRunner::start(Bend::Nothing).await;
    let streamed = report(&streamed.url, &["--runner", BENT_ID]).await;
    skipped.extend(with_outcome(&streamed, "skip"));
    skipped.sort_unstable();
    let appended = report(&runner.url, &["--runner", BENT_ID]).await;
    let mut seen = with_outcome(&appended, "skip");
    seen.sort_unstable();
    assert_eq!(seen, skipped, "{:#}", appended["checks"]);
    assert_eq!(appended["passed"], true);
}

#[tokio::test]
async fn a_bad_list_is_told_by_name() {
    check_rows(&[
        (Bend::ListsNothing, &["discovery.lists"], &[]),
        (Bend::ListFails, &["discovery.lists"], &[]),
        (Bend::ListsABadManifest, &["discovery.manifests"], &[]),
        (Bend::ListsABadId, &["discovery.runner_ids"], &[]),
        (Bend::ListsVersionTwo, &["discovery.protocol_version"], &[]),
        (Bend::ListsOtherIdsEachTime, &["discovery.stable"], &[]),
        (
            Bend::ListsAnUnknownCapability,
            &[],
            &["discovery.known_words"],
        ),
    ])
    .await;
}

#[tokio::test]
async fn who_lets_strangers_in_is_told_by_name() {
    check_rows(&[
        (Bend::TakesUnsigned, &["signature.refuses_unsigned"], &[]),
        (
            Bend::TakesUnsignedLists,
            &[],
            &["signature.refuses_unsigned_list"],
        ),
        (
            Bend::TakesAnySecret,
            &["signature.refuses_wrong_secret"],
            &[],
        ),
        (
            Bend::TakesTamperedBodies,
            &["signature.refuses_tampered_body"],
            &[],
        ),
        (
            Bend::TakesOldTimestamps,
            &["signature.refuses_old_timestamp"],
            &[],
        ),
        (
            Bend::TakesFutureTimestamps,
            &[],
            &["signature.refuses_future_timestamp"],
        ),
        (Bend::TakesAnIdTwice, &[], &["signature.runs_an_id_once"]),
        (Bend::RefusesSigned, &["signature.accepts_signed"], &[]),
        (
            Bend::TakesUnsignedCancels,
            &["cancel.refuses_unsigned"],
            &[],
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_bad_answer_is_told_by_name() {
    check_rows(&[
        (Bend::NeverAnswers, &["stream.first_byte"], &[]),
        (Bend::AnswersServerError, &["stream.status"], &[]),
        (Bend::AnswersHtml, &["stream.content_type"], &[]),
        (Bend::Compresses, &["stream.content_type"], &[]),
        (Bend::SendsNoJson, &["stream.results"], &[]),
        (Bend::SendsALongLine, &["stream.limits"], &[]),
        (Bend::NamesAnotherRun, &["stream.run_id"], &[]),
        (Bend::CountsBackward, &["stream.sequence"], &[]),
        (Bend::LeavesAHole, &[], &["stream.sequence_dense"]),
        (Bend::BendsAPayload, &["stream.payloads"], &[]),
        (Bend::WritesHostState, &["stream.state_keys"], &[]),
        (Bend::LeaksTheToken, &["stream.no_token"], &[]),
    ])
    .await;
}

#[tokio::test]
async fn a_bad_end_is_told_by_name() {
    check_rows(&[
        (Bend::ForgetsTheTerminal, &["stream.terminal"], &[]),
        (Bend::EndsTwice, &["stream.one_terminal"], &[]),
        (
            Bend::TalksAfterTheEnd,
            &["stream.nothing_after_terminal"],
            &[],
        ),
        (Bend::StaysOpen, &[], &["stream.closes"]),
        (Bend::SaysNothing, &["stream.output"], &[]),
        (Bend::SendsSnapshots, &["stream.pieces"], &[]),
        (Bend::HidesStreaming, &[], &["stream.capability"]),
    ])
    .await;
}

#[tokio::test]
async fn warns_of_forgiven_deviations() {
    check_rows(&[
        (Bend::SendsForeignEvents, &[], &["stream.framing"]),
        (Bend::EndsEventsByOneBreak, &[], &["stream.framing"]),
        (Bend::SaysJsonForEvents, &[], &["stream.framing"]),
        (Bend::CutsCharacters, &[], &["stream.text"]),
        (
            Bend::FailsInTheGatewaysName,
            &[],
            &["stream.completes", "stream.failure_code"],
        ),
        (
            Bend::WritesStateOfNoConversation,
            &[],
            &["request.bare_event"],
        ),
    ])
    .await;
}

#[tokio::test]
async fn who_cannot_take_what_comes_is_told_by_name() {
    check_rows(&[
        (Bend::RefusesUnknownFields, &["request.unknown_fields"], &[]),
        (Bend::NeedsAConversation, &["request.bare_event"], &[]),
        (Bend::RefusesACharset, &[], &["request.content_type"]),
        (Bend::RefusesCancels, &["cancel.accepted"], &[]),
        (Bend::IgnoresCancels, &["cancel.ends"], &[]),
        (Bend::StumblesOverCancels, &["cancel.unsupported"], &[]),
        (Bend::FailsAfterACut, &["deadline.survives_cut"], &[]),
        (Bend::MixesRuns, &["concurrency.separate"], &[]),
    ])
    .await;
}

#[tokio::test]
async fn a_bad_callback_is_told_by_name() {
    check_rows(&[
        (Bend::CallsWithoutToken, &["callbacks.token"], &[]),
        (Bend::CallsNowhere, &["callbacks.routes"], &[]),
        (Bend::CallsWithABadBody, &["callbacks.bodies"], &[]),
        (Bend::CallsWhatIsNotGranted, &[], &["callbacks.granted"]),
        (
            Bend::CallsAfterTheEnd,
            &["callbacks.none_after_terminal"],
            &[],
        ),
    ])
    .await;
}

#[tokio::test]
async fn snapshots_are_fine_where_they_are_registered() {
    let runner = BentRunner::start(Bend::SendsSnapshots).await;
    let report = report(&runner.url, &["--delta-mode", "snapshot"]).await;
    assert_eq!(
        finding(&report, "stream.pieces")["outcome"],
        "pass",
        "{report:#}"
    );
}

// --- reports ---

#[tokio::test]
async fn a_failure_says_what_was_expected_seen_and_to_be_done() {
    let runner = BentRunner::start(Bend::NamesAnotherRun).await;
    let report = report(&runner.url, &[]).await;
    let failed = finding(&report, "stream.run_id");
    assert_eq!(failed["runner"], BENT_ID);
    assert!(
        failed["expected"]
            .as_str()
            .unwrap()
            .contains("context.run_id")
    );
    assert!(failed["seen"].as_str().unwrap().contains("another"));
    assert!(failed["advice"].as_str().unwrap().contains("run_id"));
    // Checks that need a correct plain run are skipped.
    let skipped = finding(&report, "concurrency.separate");
    assert_eq!(skipped["outcome"], "skip");
    assert!(skipped["seen"].as_str().unwrap().contains("mend"));

    let printed = conform(&runner.url, &[]).await;
    let lines: Vec<_> = printed.stdout.lines().collect();
    let at = lines
        .iter()
        .position(|line| line.contains("FAIL  stream.run_id"));
    let at = at.unwrap_or_else(|| panic!("{printed:?}"));
    assert!(
        lines[at + 1].trim_start().starts_with("expected  "),
        "{printed:?}"
    );
    assert!(
        lines[at + 2].trim_start().starts_with("do  "),
        "{printed:?}"
    );
    assert!(lines.last().unwrap().contains(" 1 failed, "), "{printed:?}");
}

#[tokio::test]
async fn hostile_text_stays_text_in_every_document() {
    let directory = Directory::new();
    for bend in [
        Bend::FailsWithHostileText,
        Bend::AnswersHtml,
        Bend::LeaksTheToken,
    ] {
        let runner = BentRunner::start(bend).await;
        let file = directory.file(&format!("{bend:?}.xml"));
        let printed = conform(&runner.url, &["--junit", file.to_str().unwrap()]).await;
        let xml = std::fs::read_to_string(&file).unwrap();
        for text in [&printed.stdout, &xml] {
            let bad = text.chars().find(|letter| {
                letter.is_control() && *letter != '\n' || "\u{202e}\u{fffe}".contains(*letter)
            });
            assert_eq!(bad, None, "{text}");
            assert!(!text.contains("rehearsal."), "a token is shown: {text}");
        }
        assert!(!xml.contains("<evil") && !xml.contains("<b>"), "{xml}");
        let Some(parsed) = parse_junit(&file) else {
            return;
        };
        let failed = u64::from(bend != Bend::FailsWithHostileText);
        assert_eq!(parsed["failures"], failed, "{xml}");
        assert_eq!(parsed["failed"].as_array().unwrap().len() as u64, failed);
        assert_eq!(parsed["tests"], parsed["cases"]);
        assert_eq!(parsed["skipped"], parsed["skips"]);
        if bend == Bend::AnswersHtml {
            let failure = &parsed["failed"][0];
            assert_eq!(failure["name"], "stream.content_type");
            assert_eq!(failure["classname"], BENT_ID);
            assert_eq!(failure["message"], "text/<b>&\"html\"");
        }
    }
}

/// Parses the file with Python's XML parser. `None` without Python.
fn parse_junit(file: &Path) -> Option<Value> {
    const SCRIPT: &str = r#"
import json, sys
import xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
suite = root[0]
cases = list(suite.iter("testcase"))
failed = [dict(case.attrib, message=case.find("failure").get("message"))
          for case in cases if case.find("failure") is not None]
json.dump({"tests": int(suite.get("tests")), "failures": int(suite.get("failures")),
           "skipped": int(suite.get("skipped")), "cases": len(cases), "failed": failed,
           "skips": sum(case.find("skipped") is not None for case in cases)}, sys.stdout)
"#;
    static SKIPPED: Once = Once::new();
    let python = Blocking::new("python3")
        .arg("-")
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut python) = python else {
        skipped(&SKIPPED, "python", "there is no python3");
        return None;
    };
    let mut stdin = python.stdin.take().unwrap();
    stdin.write_all(SCRIPT.as_bytes()).unwrap();
    drop(stdin);
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "{}: it is no XML", file.display());
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[tokio::test]
async fn static_headers_and_given_manifests_are_used() {
    let runner = StubRunner::start().await;
    let manifests = json!([crate::support::runner::manifest("plugin:test/stub/default")]);
    let manifests = manifests.to_string();
    let arguments = [
        "--header",
        "x-api-key=env:E2E_HEADER",
        "--manifests",
        &manifests,
    ];
    let report = report(&runner.url, &arguments).await;
    assert_eq!(finding(&report, "discovery.lists")["outcome"], "skip");
    assert_eq!(finding(&report, "discovery.manifests")["outcome"], "pass");
    // The stub does not verify signatures and has no scripted response.
    let failed = with_outcome(&report, "fail");
    assert_eq!(failed, ["stream.status"], "{report:#}");
    let requests = runner.requests();
    assert!(requests.iter().any(crate::support::runner::Request::is_run));
    for request in requests {
        assert_eq!(
            request.header("x-api-key"),
            Some("opens-sesame"),
            "{request:?}"
        );
    }
}

#[tokio::test]
async fn wrong_usage_ends_with_2_and_repeats_no_secret() {
    let runner = rust_echo().await;
    let url = runner.url.as_str();
    for (url, arguments, told) in [
        ("http://127.0.0.1:1", &[][..], "cannot be reached"),
        ("ftp://127.0.0.1", &[], "URL"),
        (url, &["--secret", SECRET], "env:NAME"),
        (
            url,
            &["--secret", "env:E2E_SURELY_NOT_SET"],
            "E2E_SURELY_NOT_SET",
        ),
        (url, &["--secret", "env:E2E_HEADER"], "whsec_"),
        (url, &["--header", "x-api-key=opens-sesame"], "env:NAME"),
        (
            url,
            &["--header", "host=env:E2E_HEADER"],
            "only the gateway",
        ),
        (url, &["--config", "[]"], "--config"),
        (url, &["--config", "@nowhere.json"], "nowhere.json"),
        (
            url,
            &["--runner", "plugin:a/b/c"],
            "plugin:runnel/echo/default",
        ),
        (
            url,
            &["--callback-url", "http://a.example/x"],
            "--callback-url",
        ),
        (url, &["--callback-listen", "0.0.0.0:0"], "--callback-url"),
        (url, &["--timeout", "0"], "--timeout"),
        (url, &["--mode", "upside-down"], "--mode"),
    ] {
        let mut command = Command::new(runnel());
        command.args(["conform", url]);
        if !arguments.contains(&"--secret") {
            command.args(["--secret", "env:E2E_SECRET"]);
        }
        command
            .args(arguments)
            .env("E2E_SECRET", SECRET)
            .env("E2E_HEADER", "opens-sesame");
        let printed = run(&mut command).await;
        assert_eq!(printed.status.code(), Some(2), "{arguments:?}: {printed:?}");
        assert_eq!(printed.stdout, "", "{arguments:?}");
        assert!(printed.stderr.contains(told), "{told}: {printed:?}");
        for secret in [SECRET.trim_start_matches("whsec_"), "opens-sesame"] {
            assert!(!printed.stderr.contains(secret), "{printed:?}");
        }
    }
}
