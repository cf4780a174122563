//! `runnel conform`: tests a runner against the contract.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use http::{HeaderMap, HeaderValue};
use protocol::JsonObject;
use protocol::admin::{DeltaMode, EndpointMode};
use protocol::id::RunnerId;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use url::Url;

use crate::app::run_limits;
use crate::config::{Config, SecretRef};
use cli::output::{self, OutputFormat, OutputPart};
use conform::junit::junit;
use conform::report::{ConformReport, Outcome, ReportLine};
use conform::{ConformError, ConformOptions, conform as check};
use egress::{outgoing_header_name, parse_plain_url};
use runner_client::Endpoint;
use runs::discovery::manifest_list;
use secrets::signature::SigningSecret;

#[derive(clap::Args)]
#[command(after_help = "\
Exit codes: 0 no failures, 1 failures, 2 the runner could not be tested: it does not answer, it refuses the secret, or
an argument is wrong.")]
pub(super) struct ConformArguments {
    /// The endpoint's base URL, or its single URL.
    url: String,
    /// Reference to the endpoint's secret: `env:NAME` or `file:PATH`.
    #[arg(long, value_name = "REFERENCE")]
    secret: String,
    /// The URL mode of the endpoint.
    #[arg(long, value_enum, default_value_t = Mode::Standard)]
    mode: Mode,
    /// The meaning of `chunk.content` in a delta.
    #[arg(long, value_enum, default_value_t = Deltas::Increment)]
    delta_mode: Deltas,
    /// Test this runner only. Default: all listed runners.
    #[arg(long, value_name = "ID")]
    runner: Option<RunnerId>,
    /// The manifests of an endpoint that cannot list its own.
    #[arg(long, value_name = "JSON|@FILE")]
    manifests: Option<String>,
    /// A header of every request; its value is `env:NAME` or `file:PATH`. May be repeated.
    #[arg(long = "header", value_name = "NAME=REFERENCE")]
    headers: Vec<String>,
    /// The message of test runs.
    #[arg(long, default_value = "hello big world")]
    text: String,
    /// The message of the run that is cancelled, if --text does not keep the runner busy.
    #[arg(long, value_name = "TEXT")]
    cancel_text: Option<String>,
    /// The agent's configuration for this runner.
    #[arg(long, value_name = "JSON|@FILE", default_value = "{}")]
    config: String,
    /// Maximum duration of one run.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Listening address for the runner's callbacks; port 0 selects a free port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    callback_listen: SocketAddr,
    /// The origin of that address for a runner on another machine.
    #[arg(long, value_name = "URL")]
    callback_url: Option<String>,
    /// Also write the report as `JUnit` XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    #[value(name = "standard")]
    Standard,
    #[value(name = "single_url", alias = "single-url")]
    SingleUrl,
}

#[derive(Clone, Copy, ValueEnum)]
enum Deltas {
    /// The next piece of the text.
    Increment,
    /// The full text so far.
    Snapshot,
}

/// Tests the endpoint and prints the report.
pub(super) async fn conform(arguments: ConformArguments, format: OutputFormat) -> ExitCode {
    let junit_file = arguments.junit.clone();
    // Wrong arguments have exit code 2, so a script can distinguish them from failed checks.
    let options = match options(arguments) {
        Ok(options) => options,
        Err(message) => return wrong_usage(&anyhow::anyhow!(message), format),
    };
    match Box::pin(check(options)).await {
        Ok(report) => finish(&report, junit_file.as_deref(), format),
        Err(error) => wrong_usage(&with_advice(error), format),
    }
}

fn finish(report: &ConformReport, junit_file: Option<&Path>, format: OutputFormat) -> ExitCode {
    if format.is_json() {
        output::document(&report.to_json());
    } else {
        report.lines().iter().for_each(print);
    }
    if let Some(file) = junit_file
        && let Err(error) = std::fs::write(file, junit(report))
    {
        let message = format!("cannot write {}: {error}", file.display());
        // The report on standard output may be JSON already, so this error is text.
        return wrong_usage(&anyhow::anyhow!(message), OutputFormat::Text);
    }
    if report.is_passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn print(line: &ReportLine) {
    let Some(outcome) = line.outcome else {
        return output::line(&line.text);
    };
    let style = match outcome {
        Outcome::Pass => output::GREEN,
        Outcome::Fail => output::RED,
        Outcome::Warn => output::YELLOW,
        Outcome::Skip => output::DIM,
    };
    output::line_of(&[
        OutputPart::Text("  "),
        OutputPart::Styled(style, outcome.shown()),
        OutputPart::Text(&line.text),
    ]);
}

fn wrong_usage(error: &anyhow::Error, format: OutputFormat) -> ExitCode {
    output::error(error, format);
    ExitCode::from(2)
}

fn with_advice(error: ConformError) -> anyhow::Error {
    let advice = match &error {
        ConformError::Unreachable(_) => Some("is the runner started, and is the URL its own?"),
        ConformError::Unauthorized(_) => {
            Some("is --secret the secret of the endpoint, and are both clocks right?")
        }
        ConformError::Config { .. } => Some("give the agent's configuration with --config"),
        _ => None,
    };
    let error = anyhow::Error::new(error);
    match advice {
        Some(advice) => anyhow::anyhow!("{error:#}; {advice}"),
        None => error,
    }
}

/// Errors never repeat an argument, which may be a misplaced secret.
fn options(arguments: ConformArguments) -> Result<ConformOptions, String> {
    let mode = match arguments.mode {
        Mode::Standard => EndpointMode::Standard,
        Mode::SingleUrl => EndpointMode::SingleUrl,
    };
    let base_url = parse_plain_url(&arguments.url).map_err(|error| format!("the URL {error}"))?;
    if base_url.query().is_some() && mode == EndpointMode::Standard {
        return Err("the URL may have a query only with --mode single_url".to_owned());
    }
    let secret = resolve("--secret", &arguments.secret)?;
    let signing = SigningSecret::parse(&secret).map_err(|error| format!("--secret: {error}"))?;
    let mut secrets = vec![secret];
    let mut headers = HeaderMap::new();
    for header in &arguments.headers {
        let (name, value) = header
            .split_once('=')
            .ok_or("--header must be NAME=REFERENCE, like x-api-key=env:API_KEY")?;
        let name =
            outgoing_header_name(name).map_err(|error| format!("--header: the name {error}"))?;
        let value = resolve("--header", value)?;
        let mut text = HeaderValue::from_str(value.expose_secret())
            .map_err(|_| format!("--header: {name} has characters that no header may have"))?;
        // Keeps the value out of debug output.
        text.set_sensitive(true);
        headers.insert(name, text);
        secrets.push(value);
    }
    let config = document("--config", &arguments.config)?;
    let config: JsonObject = match config {
        Value::Object(config) => config,
        _ => return Err("--config must be a JSON object".to_owned()),
    };
    if arguments.callback_listen.ip().is_unspecified() && arguments.callback_url.is_none() {
        return Err(
            "--callback-listen on every address needs a --callback-url: runners need an address to call"
                .to_owned(),
        );
    }
    Ok(ConformOptions {
        endpoint: Endpoint {
            base_url,
            mode,
            secret: signing,
            headers,
        },
        secrets,
        delta_mode: match arguments.delta_mode {
            Deltas::Increment => DeltaMode::Increment,
            Deltas::Snapshot => DeltaMode::Snapshot,
        },
        runner: arguments.runner,
        manifests: arguments.manifests.as_deref().map(manifests).transpose()?,
        cancel_text: arguments
            .cancel_text
            .unwrap_or_else(|| arguments.text.clone()),
        text: arguments.text,
        config,
        timeout: Duration::from_secs(arguments.timeout),
        limits: run_limits(&Config::for_dev(Path::new("."), arguments.callback_listen)),
        callback_listen: arguments.callback_listen,
        callback_url: arguments.callback_url.as_deref().map(origin).transpose()?,
    })
}

fn resolve(option: &str, reference: &str) -> Result<SecretString, String> {
    let reference: SecretRef = reference
        .parse()
        .map_err(|error| format!("{option}: {error}"))?;
    reference
        .resolve()
        .map_err(|error| format!("{option}: {error}"))
}

/// Parses inline JSON, or the file after `@`.
fn document(option: &str, text: &str) -> Result<Value, String> {
    let text = match text.strip_prefix('@') {
        None => text.to_owned(),
        Some(file) => std::fs::read_to_string(file)
            .map_err(|error| format!("{option}: cannot read {file}: {error}"))?,
    };
    serde_json::from_str(&text).map_err(|error| format!("{option} is no JSON: {error}"))
}

fn manifests(text: &str) -> Result<Vec<Value>, String> {
    let manifests = document("--manifests", text)?;
    manifest_list(manifests).ok_or_else(|| {
        let shape = json!({"runners": []});
        format!("--manifests must be a list of manifests, or {shape}")
    })
}

fn origin(text: &str) -> Result<Url, String> {
    let url = parse_plain_url(text).map_err(|error| format!("--callback-url {error}"))?;
    if url.path() == "/" && url.query().is_none() {
        Ok(url)
    } else {
        Err("--callback-url must have no path and no query, like https://tunnel.example".to_owned())
    }
}
