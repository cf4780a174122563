//! Findings and their output. Text of an endpoint is shown as plain characters, without secrets.

use std::fmt::Write as _;

use protocol::id::RunnerId;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use super::mock_host::TOKEN_PREFIX;
use runner_client::Endpoint;

/// Maximum length of quoted endpoint text, in characters.
const MAX_SHOWN: usize = 400;
/// Maximum characters of an excerpt of a body.
const MAX_EXCERPT: usize = 200;

/// A rule of the contract.
#[derive(Debug, PartialEq, Eq)]
pub struct ContractCheck {
    /// Stable id, `group.name`.
    pub id: &'static str,
    pub expected: &'static str,
    /// Instruction for the author, shown with a failure.
    pub advice: &'static str,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Pass,
    /// The contract is broken.
    Fail,
    /// The contract allows it, but it may cause problems for users.
    Warn,
    /// Not observable in this test.
    Skip,
}

impl Outcome {
    /// Name in JSON documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Warn => "warn",
            Self::Skip => "skip",
        }
    }

    /// Name in the text report.
    pub fn shown(self) -> &'static str {
        match self {
            Self::Fail => "FAIL",
            other => other.as_str(),
        }
    }
}

/// The result of a check on an endpoint or runner.
#[derive(Debug)]
pub struct Finding {
    pub check: &'static ContractCheck,
    /// The tested runner; `None` for the endpoint in general.
    pub runner: Option<String>,
    pub outcome: Outcome,
    /// The observation, or the reason of a skip.
    pub seen: String,
}

pub(super) struct FindingCollector<'a> {
    redaction: &'a Redaction,
    runner: Option<String>,
    findings: Vec<Finding>,
}

impl<'a> FindingCollector<'a> {
    pub(super) fn new(redaction: &'a Redaction) -> Self {
        Self {
            redaction,
            runner: None,
            findings: Vec::new(),
        }
    }

    /// Assigns the following findings to this runner.
    pub(super) fn set_runner(&mut self, runner: &RunnerId) {
        self.runner = Some(self.redaction.clean(&runner.to_string()));
    }

    pub(super) fn pass(&mut self, check: &'static ContractCheck, seen: impl AsRef<str>) {
        self.add(check, Outcome::Pass, seen.as_ref());
    }

    pub(super) fn fail(&mut self, check: &'static ContractCheck, seen: impl AsRef<str>) {
        self.add(check, Outcome::Fail, seen.as_ref());
    }

    pub(super) fn warn(&mut self, check: &'static ContractCheck, seen: impl AsRef<str>) {
        self.add(check, Outcome::Warn, seen.as_ref());
    }

    pub(super) fn skip(&mut self, check: &'static ContractCheck, reason: impl AsRef<str>) {
        self.add(check, Outcome::Skip, reason.as_ref());
    }

    /// Turns a warning of the check about this runner into a failure, for this reason.
    pub(super) fn fail_warned(&mut self, check: &ContractCheck, reason: &str) {
        let warned = self.findings.iter_mut().find(|finding| {
            finding.check == check
                && finding.runner == self.runner
                && finding.outcome == Outcome::Warn
        });
        if let Some(finding) = warned {
            finding.outcome = Outcome::Fail;
            finding.seen = format!("{reason}: {}", finding.seen);
        }
    }

    /// Skips the checks of `groups` without a finding for this runner or the endpoint.
    pub(super) fn skip_open(&mut self, groups: &[&[&'static ContractCheck]], reason: &str) {
        for check in groups.iter().copied().flatten() {
            if !self.has(check) {
                self.skip(check, reason);
            }
        }
    }

    /// True if this runner or the endpoint has a finding of the check.
    pub(super) fn has(&self, check: &ContractCheck) -> bool {
        let about = |finding: &&Finding| finding.runner == self.runner;
        let mut own = self.findings.iter().filter(about);
        own.any(|finding| finding.check == check)
    }

    fn add(&mut self, check: &'static ContractCheck, outcome: Outcome, seen: &str) {
        self.findings.push(Finding {
            check,
            runner: self.runner.clone(),
            outcome,
            seen: self.redaction.clean(seen),
        });
    }
}

/// Prepares endpoint text for output: short, printable, without secrets.
pub(super) struct Redaction {
    secrets: Vec<String>,
}

impl Redaction {
    pub(super) fn new(secrets: &[SecretString]) -> Self {
        let texts = secrets.iter().map(|secret| {
            let text = secret.expose_secret().trim();
            text.strip_prefix("whsec_").unwrap_or(text).to_owned()
        });
        Self {
            // Shorter secrets would match common words in the report.
            secrets: texts.filter(|text| text.len() >= 4).collect(),
        }
    }

    /// The start of a body on one line.
    pub(super) fn excerpt(&self, body: &str) -> String {
        let text = self.redact(body);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        match words.char_indices().nth(MAX_EXCERPT) {
            Some((end, _)) => format!("{}…", &words[..end]),
            None => words,
        }
    }

    fn redact(&self, text: &str) -> String {
        // Redacted before it is cut: a part of a secret would not be recognized.
        let mut text = text.to_owned();
        for secret in &self.secrets {
            text = text.replace(secret.as_str(), "[secret]");
        }
        without_tokens(&text)
    }

    pub(super) fn clean(&self, text: &str) -> String {
        let text = self.redact(text);
        let mut shown = String::new();
        for (count, letter) in text.chars().enumerate() {
            if count == MAX_SHOWN {
                shown.push('…');
                break;
            }
            if is_plain(letter) {
                // A runner's text must not change the terminal or the direction of the report's text.
                shown.push(letter);
            } else {
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(letter));
            }
        }
        shown
    }
}

/// True if a character is safe in terminals, logs and XML: no control characters, no changes of text direction,
/// no noncharacters.
fn is_plain(letter: char) -> bool {
    !letter.is_control()
        && !matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
        // U+xFFFE and U+xFFFF are not allowed in XML.
        && u32::from(letter) & 0xfffe != 0xfffe
}

fn without_tokens(text: &str) -> String {
    let mut parts = text.split(TOKEN_PREFIX);
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        clean.push_str("[token]");
        // The rest of a token is hexadecimal; the text after it stays.
        clean.push_str(part.trim_start_matches(|letter: char| letter.is_ascii_hexdigit()));
    }
    clean
}

/// A line of the text report.
#[derive(Debug)]
pub struct ReportLine {
    /// The line begins with two spaces and the name of this outcome.
    pub outcome: Option<Outcome>,
    /// The line, or its rest.
    pub text: String,
}

/// All findings about one endpoint.
#[derive(Debug)]
pub struct ConformReport {
    /// The endpoint's URL without its query, which may hold a secret.
    pub endpoint: String,
    pub mode: &'static str,
    /// Callback URL that the runner received.
    pub callbacks: String,
    pub findings: Vec<Finding>,
    /// Number of checks that were not run, because no runner was found. 0: all were run.
    pub not_run: usize,
}

impl ConformReport {
    /// A report of all checks. `callbacks`: base URL that the runners call.
    pub(super) fn new(endpoint: &Endpoint, callbacks: &str, book: FindingCollector<'_>) -> Self {
        let mut url = endpoint.base_url.clone();
        // The query may hold a secret.
        url.set_query(None);
        Self {
            endpoint: url.to_string(),
            mode: match endpoint.mode {
                protocol::admin::EndpointMode::Standard => "standard",
                protocol::admin::EndpointMode::SingleUrl => "single_url",
            },
            callbacks: callbacks.to_owned(),
            findings: book.findings,
            not_run: 0,
        }
    }

    /// True if no check failed.
    pub fn is_passed(&self) -> bool {
        self.count(Outcome::Fail) == 0
    }

    /// Number of findings with this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        let is_so = |finding: &&Finding| finding.outcome == outcome;
        self.findings.iter().filter(is_so).count()
    }

    /// The report as JSON.
    pub fn to_json(&self) -> Value {
        let checks: Vec<_> = self.findings.iter().map(finding_json).collect();
        json!({
            "endpoint": self.endpoint,
            "mode": self.mode,
            "callbacks": self.callbacks,
            "passed": self.is_passed(),
            "not_run": self.not_run,
            "counts": {
                "pass": self.count(Outcome::Pass), "fail": self.count(Outcome::Fail),
                "warn": self.count(Outcome::Warn), "skip": self.count(Outcome::Skip),
            },
            "checks": checks,
        })
    }

    /// The report as text: a line for each check, with advice for failures.
    pub fn lines(&self) -> Vec<ReportLine> {
        let plain = |text: String| ReportLine {
            outcome: None,
            text,
        };
        let mut lines = vec![
            plain(format!("{} ({})", self.endpoint, self.mode)),
            plain(format!("callbacks at {}", self.callbacks)),
        ];
        let mut about = None;
        for finding in &self.findings {
            if finding.runner != about {
                about.clone_from(&finding.runner);
                let about = about.as_deref().unwrap_or("endpoint");
                lines.extend([plain(String::new()), plain(about.to_owned())]);
            }
            let ContractCheck {
                id,
                expected,
                advice,
            } = finding.check;
            lines.push(ReportLine {
                outcome: Some(finding.outcome),
                text: format!("  {id:<35} {}", finding.seen),
            });
            // A passed check needs no advice.
            if matches!(finding.outcome, Outcome::Fail | Outcome::Warn) {
                lines.push(plain(format!("        expected  {expected}")));
                lines.push(plain(format!("        do        {advice}")));
            }
        }
        if self.not_run > 0 {
            let text = format!(
                "no runner can be tested, so {} checks were not run; mend the discovery first",
                self.not_run
            );
            lines.extend([plain(String::new()), plain(text)]);
        }
        let count = |outcome| self.count(outcome) as u64;
        let summary = format!(
            "{} passed, {} failed, {}, {} skipped",
            count(Outcome::Pass),
            count(Outcome::Fail),
            counted(count(Outcome::Warn), "warning"),
            count(Outcome::Skip),
        );
        lines.extend([plain(String::new()), plain(summary)]);
        lines
    }
}

/// A number with its noun: `1 result`, `2 results`.
pub(super) fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

fn finding_json(finding: &Finding) -> Value {
    let ContractCheck {
        id,
        expected,
        advice,
    } = finding.check;
    let mut json = json!({
        "id": id, "runner": finding.runner, "outcome": finding.outcome.as_str(),
        "expected": expected, "seen": finding.seen,
    });
    if matches!(finding.outcome, Outcome::Fail | Outcome::Warn) {
        json["advice"] = json!(advice);
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_no_plural() {
        assert_eq!(counted(1, "result"), "1 result");
        assert_eq!(counted(0, "result"), "0 results");
    }

    #[test]
    fn endpoint_text_is_plain_and_redacted() {
        let secret = SecretString::from("whsec_MDEyMzQ1Njc4OWFiY2RlZg==");
        let redaction = Redaction::new(&[secret, SecretString::from("abc")]);
        for (text, shown) in [
            ("plain ü 你好", "plain ü 你好"),
            ("\u{1b}[31mred\r\n\0", "\\u{1b}[31mred\\u{d}\\u{a}\\u{0}"),
            ("a\u{202e}b\u{ffff}\u{85}", "a\\u{202e}b\\u{ffff}\\u{85}"),
            ("key MDEyMzQ1Njc4OWFiY2RlZg== here", "key [secret] here"),
            ("token mock-run.0a1b2c, and", "token [token], and"),
            ("abc", "abc"),
        ] {
            assert_eq!(redaction.clean(text), shown, "{text:?}");
        }
        let body = format!("Error\n  at MDEyMzQ1Njc4OWFiY2RlZg==\n{}", "x".repeat(300));
        let excerpt = redaction.excerpt(&body);
        assert!(excerpt.starts_with("Error at [secret] xxx"), "{excerpt}");
        assert_eq!(excerpt.chars().count(), MAX_EXCERPT + 1);
        let long = redaction.clean(&"x".repeat(10_000));
        assert_eq!(long.chars().count(), MAX_SHOWN + 1);
    }
}
