//! `runnel conform`: runners that keep the contract pass, and each violation is reported under its check id.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command as Blocking, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::support::faulty_runner::{FAULTY_RUNNER_ID, FaultyRunner, InjectedFault};
use crate::support::listening::{local_agent_under, rust_echo};
use crate::support::node::typescript_echo;
use crate::support::programs::runnel;
use crate::support::python::{example, python_echo, python_with_httpx};
use crate::support::runner::{SECRET, StubRunner};
use crate::support::{CommandOutput, TempDirectory, run, skipped};

const OTHER_SECRET: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

/// Number of runners checked concurrently; checks mostly wait.
const CONCURRENT_CHECKS: usize = 8;

async fn conform(url: &str, arguments: &[&str]) -> CommandOutput {
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
const SINGLE_FILE_WARNINGS: [&str; 2] = ["signature.runs_an_id_once", "deadline.respected"];
const SINGLE_FILE_SKIPS: [&str; 2] = ["discovery.health", "cancel.unsupported"];

/// Asserts that no check fails, and that exactly these checks warn or are skipped. Of runners without the capability
/// `resumable`, the checks of resumes are skipped as well.
async fn assert_conforms(
    url: &str,
    arguments: &[&str],
    warnings: &[&str],
    skipped: &[&str],
) -> Value {
    let report = report(url, arguments).await;
    let shown = serde_json::to_string_pretty(&report).unwrap();
    assert_eq!(with_outcome(&report, "fail"), [""; 0], "{shown}");
    assert_eq!(with_outcome(&report, "warn"), warnings, "{shown}");
    let skips = with_outcome(&report, "skip").into_iter();
    let skips: Vec<_> = skips.filter(|id| !id.starts_with("resume.")).collect();
    assert_eq!(skips, skipped, "{shown}");
    assert_eq!(report["passed"], true);
    assert_eq!(report["counts"]["fail"], 0);
    report
}

/// Asserts that the runner passes each check of resumes.
fn assert_resumes(report: &Value) {
    let passed = with_outcome(report, "pass").into_iter();
    let passed: Vec<_> = passed.filter(|id| id.starts_with("resume.")).collect();
    assert_eq!(passed.len(), 8, "{report:#}");
}

#[tokio::test]
async fn rust_example_conforms() {
    let runner = rust_echo().await;
    let report = assert_conforms(&runner.url, &[], &[], &["cancel.unsupported"]).await;
    assert_resumes(&report);
}

#[tokio::test]
async fn rust_example_conforms_in_single_url_mode() {
    let runner = rust_echo().await;
    let single = ["--mode", "single_url"];
    let skipped = ["discovery.health", "cancel.unsupported"];
    let report = assert_conforms(&runner.url, &single, &[], &skipped).await;
    assert_resumes(&report);
}

#[tokio::test]
async fn python_example_conforms() {
    let runner = or_skip!(python_echo().await);
    assert_conforms(&runner.url, &[], &SINGLE_FILE_WARNINGS, &SINGLE_FILE_SKIPS).await;
}

#[tokio::test]
async fn typescript_example_conforms() {
    let runner = or_skip!(typescript_echo().await);
    assert_conforms(&runner.url, &[], &SINGLE_FILE_WARNINGS, &SINGLE_FILE_SKIPS).await;
}

/// The granted model calls the granted tool, so the calls of an agent are checked, too.
#[tokio::test]
async fn grants_what_the_manifest_requests() {
    let local_agent = local_agent_under(SECRET).await;
    let assistant = match python_with_httpx().await {
        Some(python) => example(python, "assistant_runner.py").await,
        None => None,
    };
    for runner in assistant.iter().chain([&local_agent]) {
        let report = report(&runner.url, &[]).await;
        assert_eq!(with_outcome(&report, "fail"), [""; 0], "{report:#}");
        for id in [
            "callbacks.token",
            "callbacks.routes",
            "callbacks.bodies",
            "callbacks.granted",
            "callbacks.none_after_terminal",
        ] {
            assert_eq!(finding(&report, id)["outcome"], "pass", "{report:#}");
        }
    }
}

// --- runners that violate it ---

#[tokio::test]
async fn stops_after_failed_discovery_with_its_body() {
    let runner = FaultyRunner::start(InjectedFault::ListFails).await;
    let printed = conform(&runner.url, &[]).await.exited(1);
    assert_contains!(
        printed.stdout,
        "FAIL  discovery.lists                     HTTP 500: Traceback: signed with whsec_[secret] xxx"
    );
    assert_contains!(printed.stdout, "checks were not run");
    assert_contains!(printed.stdout, "1 failed, 0 warnings, 0 skipped");
    assert!(!printed.stdout.contains(SECRET.trim_start_matches("whsec_")));
    let lines = printed.stdout.lines();
    assert!(lines.clone().count() < 12, "{printed:?}");
    assert!(lines.map(str::len).max() < Some(300), "{printed:?}");

    let report = report(&runner.url, &[]).await;
    assert_eq!(report["checks"].as_array().unwrap().len(), 1);
    assert!(report["not_run"].as_u64() > Some(40), "{report:#}");
}

/// Many servers close a connection after an error, without announcing it.
#[tokio::test]
async fn checks_after_an_error_use_new_connections() {
    let runner = ClosingRunner::start().await;
    let report = report(&runner.url, &[]).await;
    assert_eq!(finding(&report, "discovery.stable")["outcome"], "pass");
    assert_members!(finding(&report, "signature.refuses_unsigned"), {"outcome": "pass"});
    assert!(runner.errors.load(Ordering::SeqCst) > 5, "{report:#}");
    assert_eq!(runner.reused.load(Ordering::SeqCst), 0, "{report:#}");
}

/// A runner that lists itself and refuses everything else. It drops a connection that is used again after an error.
struct ClosingRunner {
    url: String,
    errors: Arc<AtomicU64>,
    reused: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl ClosingRunner {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (errors, reused) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let mut tasks = JoinSet::new();
        let counters = (Arc::clone(&errors), Arc::clone(&reused));
        tasks.spawn(async move {
            let mut serving = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                serving.spawn(Self::serve(stream, counters.clone()));
            }
        });
        Self {
            url,
            errors,
            reused,
            _tasks: tasks,
        }
    }

    async fn serve(mut stream: TcpStream, (errors, reused): (Arc<AtomicU64>, Arc<AtomicU64>)) {
        let list = json!({"runners": [
            {"id": "acme/closing", "name": "closing", "label": {"en_US": "Closing"}},
        ]});
        let mut has_failed = false;
        while let Some(head) = read_request(&mut stream).await {
            if has_failed {
                reused.fetch_add(1, Ordering::SeqCst);
                return;
            }
            let is_list = head.starts_with("get /runners ") && head.contains("webhook-signature");
            let (status, body) = if is_list {
                ("200 OK", list.to_string())
            } else {
                has_failed = true;
                errors.fetch_add(1, Ordering::SeqCst);
                ("401 Unauthorized", "{}".to_owned())
            };
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

/// The head of the next request in lower case. Its body is discarded.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    let length = head.split("content-length: ").nth(1);
    let length = length.and_then(|rest| rest.lines().next()?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some(head)
}

/// A fault, the checks that fail, and the checks that warn.
type FaultCase = (
    InjectedFault,
    &'static [&'static str],
    &'static [&'static str],
);

async fn check_rows(rows: &[FaultCase]) {
    let checked = stream::iter(rows).map(|row| check_row(*row));
    let faults: Vec<_> = checked.buffer_unordered(CONCURRENT_CHECKS).collect().await;
    let faults: Vec<_> = faults.into_iter().flatten().collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

async fn check_row((bend, fails, warns): FaultCase) -> Option<String> {
    let runner = FaultyRunner::start(bend).await;
    let timeout = match bend {
        InjectedFault::NeverAnswers
        | InjectedFault::AppendsNothing
        | InjectedFault::AppendsWithAGap => "5",
        _ => "30",
    };
    let report = report(
        &runner.url,
        &["--runner", FAULTY_RUNNER_ID, "--timeout", timeout],
    )
    .await;
    let findings = (with_outcome(&report, "fail"), with_outcome(&report, "warn"));
    (findings != (fails.to_vec(), warns.to_vec()))
        .then(|| format!("{bend:?}: {findings:?}\n{:#}", report["checks"]))
}

#[tokio::test]
async fn correct_runners_pass_in_every_framing() {
    check_rows(&[
        (InjectedFault::Nothing, &[], &[]),
        (InjectedFault::SendsJsonLines, &[], &[]),
        (InjectedFault::AnswersAsOneDocument, &[], &[]),
        (InjectedFault::Appends, &[], &[]),
        (InjectedFault::SendsAllContent, &[], &[]),
        (InjectedFault::WritesStateOfEachEvent, &[], &[]),
    ])
    .await;
}

#[tokio::test]
async fn reports_missing_appends_after_202() {
    check_rows(&[
        (InjectedFault::AppendsNothing, &["stream.terminal"], &[]),
        (
            InjectedFault::AppendsWithAGap,
            &["stream.terminal", "callbacks.bodies"],
            &[],
        ),
    ])
    .await;
}

/// The same checks apply to appended runs as to streams, except checks of a response body.
#[tokio::test]
async fn checks_appended_runs_like_streams() {
    let runner = FaultyRunner::start(InjectedFault::Appends).await;
    let bodiless = [
        "stream.content_type",
        "stream.framing",
        "stream.closes",
        "deadline.respected",
    ];
    let mut skipped = Vec::from(bodiless);
    let streamed = FaultyRunner::start(InjectedFault::Nothing).await;
    let streamed = report(&streamed.url, &["--runner", FAULTY_RUNNER_ID]).await;
    skipped.extend(with_outcome(&streamed, "skip"));
    skipped.sort_unstable();
    let appended = report(&runner.url, &["--runner", FAULTY_RUNNER_ID]).await;
    let mut seen = with_outcome(&appended, "skip");
    seen.sort_unstable();
    assert_eq!(seen, skipped, "{:#}", appended["checks"]);
    assert_eq!(appended["passed"], true);
}

#[tokio::test]
async fn reports_invalid_runner_lists() {
    check_rows(&[
        (InjectedFault::ListsNothing, &["discovery.lists"], &[]),
        (InjectedFault::ListFails, &["discovery.lists"], &[]),
        (
            InjectedFault::ListsInvalidManifest,
            &["discovery.manifests"],
            &[],
        ),
        (
            InjectedFault::ListsInvalidId,
            &["discovery.runner_ids"],
            &[],
        ),
        (
            InjectedFault::ListsVersionTwo,
            &["discovery.protocol_version"],
            &[],
        ),
        (
            InjectedFault::ListsOtherIdsEachTime,
            &["discovery.stable"],
            &[],
        ),
        (
            InjectedFault::ListsAnUnknownCapability,
            &[],
            &["discovery.known_words"],
        ),
    ])
    .await;
}

#[tokio::test]
async fn reports_missing_signature_checks() {
    check_rows(&[
        (
            InjectedFault::AcceptsUnsigned,
            &["signature.refuses_unsigned"],
            &[],
        ),
        (
            InjectedFault::AcceptsUnsignedLists,
            &[],
            &["signature.refuses_unsigned_list"],
        ),
        (
            InjectedFault::AcceptsAnySecret,
            &["signature.refuses_wrong_secret"],
            &[],
        ),
        (
            InjectedFault::AcceptsTamperedBodies,
            &["signature.refuses_tampered_body"],
            &[],
        ),
        (
            InjectedFault::AcceptsOldTimestamps,
            &["signature.refuses_old_timestamp"],
            &[],
        ),
        (
            InjectedFault::AcceptsFutureTimestamps,
            &[],
            &["signature.refuses_future_timestamp"],
        ),
        (
            InjectedFault::AcceptsDuplicateIds,
            &[],
            &["signature.runs_an_id_once"],
        ),
        (
            InjectedFault::RefusesSigned,
            &["signature.accepts_signed"],
            &[],
        ),
        (
            InjectedFault::AcceptsUnsignedCancels,
            &["cancel.refuses_unsigned"],
            &[],
        ),
    ])
    .await;
}

#[tokio::test]
async fn reports_invalid_run_responses() {
    check_rows(&[
        (InjectedFault::NeverAnswers, &["stream.first_byte"], &[]),
        (InjectedFault::AnswersServerError, &["stream.status"], &[]),
        (InjectedFault::AnswersHtml, &["stream.content_type"], &[]),
        (InjectedFault::Compresses, &["stream.content_type"], &[]),
        (InjectedFault::SendsInvalidJson, &["stream.results"], &[]),
        (InjectedFault::SendsALongLine, &["stream.limits"], &[]),
        (InjectedFault::UsesAnotherRunId, &["stream.run_id"], &[]),
        (InjectedFault::CountsBackward, &["stream.sequence"], &[]),
        (
            InjectedFault::LeavesASequenceGap,
            &[],
            &["stream.sequence_dense"],
        ),
        (
            InjectedFault::SendsInvalidPayload,
            &["stream.payloads"],
            &[],
        ),
        (InjectedFault::WritesHostState, &["stream.state_keys"], &[]),
        (InjectedFault::LeaksTheToken, &["stream.no_token"], &[]),
    ])
    .await;
}

#[tokio::test]
async fn reports_invalid_terminals() {
    check_rows(&[
        (InjectedFault::OmitsTheTerminal, &["stream.terminal"], &[]),
        (
            InjectedFault::SendsTwoTerminals,
            &["stream.one_terminal"],
            &[],
        ),
        (
            InjectedFault::SendsAfterTheTerminal,
            &["stream.nothing_after_terminal"],
            &[],
        ),
        (InjectedFault::StaysOpen, &[], &["stream.closes"]),
        (InjectedFault::SendsNothing, &["stream.output"], &[]),
        (InjectedFault::SendsSnapshots, &["stream.pieces"], &[]),
        (InjectedFault::HidesStreaming, &[], &["stream.capability"]),
    ])
    .await;
}

#[tokio::test]
async fn warns_about_tolerated_deviations() {
    check_rows(&[
        (InjectedFault::SendsForeignEvents, &[], &["stream.framing"]),
        (InjectedFault::OmitsEmptyLines, &[], &["stream.framing"]),
        (InjectedFault::LabelsEventsAsJson, &[], &["stream.framing"]),
        (InjectedFault::SplitsCharacters, &[], &["stream.text"]),
        (
            InjectedFault::UsesGatewayErrorCode,
            &["stream.completes"],
            &["stream.failure_code"],
        ),
        (
            InjectedFault::WritesMissingConversationState,
            &[],
            &["request.bare_event"],
        ),
    ])
    .await;
}

#[tokio::test]
async fn fails_runners_that_complete_no_run() {
    let runner = FaultyRunner::start(InjectedFault::FailsWithHostileText).await;
    let report = report(&runner.url, &["--runner", FAULTY_RUNNER_ID]).await;
    assert_eq!(with_outcome(&report, "fail"), ["stream.completes"]);
    let seen = finding(&report, "stream.completes")["seen"].as_str();
    assert_starts_with!(seen.unwrap(), "no run completed: run.failed, x: ");
}

#[tokio::test]
async fn reports_refused_valid_requests() {
    check_rows(&[
        (
            InjectedFault::RefusesUnknownFields,
            &["request.unknown_fields"],
            &[],
        ),
        (
            InjectedFault::RequiresAConversation,
            &["request.bare_event"],
            &[],
        ),
        (
            InjectedFault::RefusesACharset,
            &[],
            &["request.content_type"],
        ),
        (InjectedFault::RefusesCancels, &["cancel.accepted"], &[]),
        (InjectedFault::IgnoresCancels, &["cancel.ends"], &[]),
        (InjectedFault::FailsCancels, &["cancel.unsupported"], &[]),
        (
            InjectedFault::FailsAfterACut,
            &["deadline.survives_cut"],
            &[],
        ),
        (InjectedFault::MixesRuns, &["concurrency.separate"], &[]),
    ])
    .await;
}

#[tokio::test]
async fn reports_invalid_callbacks() {
    check_rows(&[
        (InjectedFault::CallsWithoutToken, &["callbacks.token"], &[]),
        (
            InjectedFault::CallsUnknownRoutes,
            &["callbacks.routes"],
            &[],
        ),
        (
            InjectedFault::CallsWithInvalidBody,
            &["callbacks.bodies"],
            &[],
        ),
        (
            InjectedFault::CallsWithoutGrant,
            &[],
            &["callbacks.granted"],
        ),
        (
            InjectedFault::CallsAfterTheEnd,
            &["callbacks.none_after_terminal"],
            &[],
        ),
    ])
    .await;
}

#[tokio::test]
async fn state_warnings_name_the_missing_permission() {
    let runner = FaultyRunner::start(InjectedFault::WritesStateWithoutPermission).await;
    let report = report(&runner.url, &["--runner", FAULTY_RUNNER_ID]).await;
    assert_eq!(with_outcome(&report, "warn"), ["callbacks.granted"]);
    let found = finding(&report, "callbacks.granted");
    assert_contains!(
        found["seen"].as_str().unwrap(),
        "permissions.state lacks it"
    );
    assert_contains!(found["advice"].as_str().unwrap(), "permissions");
}

#[tokio::test]
async fn accepts_snapshots_in_snapshot_delta_mode() {
    let runner = FaultyRunner::start(InjectedFault::SendsSnapshots).await;
    let report = report(&runner.url, &["--delta-mode", "snapshot"]).await;
    assert_eq!(
        finding(&report, "stream.pieces")["outcome"],
        "pass",
        "{report:#}"
    );
}

// --- reports ---

#[tokio::test]
async fn failures_report_expectation_observation_and_remedy() {
    let runner = FaultyRunner::start(InjectedFault::UsesAnotherRunId).await;
    let report = report(&runner.url, &[]).await;
    let failed = finding(&report, "stream.run_id");
    assert_eq!(failed["runner"], FAULTY_RUNNER_ID);
    assert_contains!(failed["expected"].as_str().unwrap(), "context.run_id");
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
async fn escapes_hostile_text_in_every_report_format() {
    let directory = TempDirectory::new();
    for bend in [
        InjectedFault::FailsWithHostileText,
        InjectedFault::AnswersHtml,
        InjectedFault::LeaksTheToken,
    ] {
        let runner = FaultyRunner::start(bend).await;
        let file = directory.file(&format!("{bend:?}.xml"));
        let printed = conform(&runner.url, &["--junit", file.to_str().unwrap()]).await;
        let xml = std::fs::read_to_string(&file).unwrap();
        for text in [&printed.stdout, &xml] {
            let bad = text.chars().find(|letter| {
                letter.is_control() && *letter != '\n' || "\u{202e}\u{fffe}".contains(*letter)
            });
            assert_eq!(bad, None, "{text}");
            assert!(!text.contains("mock-run."), "a token is shown: {text}");
        }
        assert!(!xml.contains("<evil") && !xml.contains("<b>"), "{xml}");
        let parsed = or_skip!(parse_junit(&file));
        assert_eq!(parsed["failures"], 1, "{xml}");
        assert_eq!(parsed["failed"].as_array().unwrap().len(), 1);
        assert_eq!(parsed["tests"], parsed["cases"]);
        assert_eq!(parsed["skipped"], parsed["skips"]);
        if bend == InjectedFault::AnswersHtml {
            let failure = &parsed["failed"][0];
            assert_eq!(failure["name"], "stream.content_type");
            assert_eq!(failure["classname"], FAULTY_RUNNER_ID);
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
async fn sends_static_headers_and_uses_given_manifests() {
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
    assert!(
        requests
            .iter()
            .any(crate::support::runner::RecordedRequest::is_run)
    );
    for request in requests {
        assert_eq!(
            request.header("x-api-key"),
            Some("opens-sesame"),
            "{request:?}"
        );
    }
}

#[tokio::test]
async fn wrong_usage_exits_with_2_without_secrets() {
    let runner = rust_echo().await;
    let url = runner.url.as_str();
    for (url, arguments, expected) in [
        ("http://127.0.0.1:1", &[][..], "cannot be reached"),
        ("ftp://127.0.0.1", &[], "URL"),
        (url, &["--secret", SECRET], "env:NAME"),
        (
            url,
            &["--secret", "env:E2E_SURELY_NOT_SET"],
            "E2E_SURELY_NOT_SET",
        ),
        (url, &["--secret", "env:E2E_HEADER"], "whsec_"),
        (url, &["--secret", "env:E2E_OTHER"], "HTTP 401"),
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
            .env("E2E_OTHER", OTHER_SECRET)
            .env("E2E_HEADER", "opens-sesame");
        let printed = run(&mut command).await;
        assert_eq!(printed.status.code(), Some(2), "{arguments:?}: {printed:?}");
        assert_eq!(printed.stdout, "", "{arguments:?}");
        assert!(printed.stderr.contains(expected), "{expected}: {printed:?}");
        for secret in [SECRET.trim_start_matches("whsec_"), "opens-sesame"] {
            assert!(!printed.stderr.contains(secret), "{printed:?}");
        }
    }
}
