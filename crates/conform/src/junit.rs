//! The report as `JUnit` XML, for CI systems.

use std::fmt::Write as _;

use super::report::{ConformReport, Finding, Outcome};

/// The report as XML. Warnings pass and appear in `system-out`.
pub fn junit(report: &ConformReport) -> String {
    let (tests, failures) = (report.findings.len(), report.count(Outcome::Fail));
    let skipped = report.count(Outcome::Skip);
    let endpoint = escape(&report.endpoint);
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuites tests=\"{tests}\" failures=\"{failures}\" skipped=\"{skipped}\" errors=\"0\">\n\
         <testsuite name=\"runnel conform {endpoint}\" tests=\"{tests}\" failures=\"{failures}\" \
         skipped=\"{skipped}\" errors=\"0\">\n"
    );
    for finding in &report.findings {
        push_case(&mut xml, finding);
    }
    xml.push_str("</testsuite>\n</testsuites>\n");
    xml
}

fn push_case(xml: &mut String, finding: &Finding) {
    let runner = finding.runner.as_deref().unwrap_or("endpoint");
    let (class, name) = (escape(runner), escape(finding.check.id));
    let seen = escape(&finding.seen);
    let expected = escape(finding.check.expected);
    let advice = escape(finding.check.advice);
    let inside = match finding.outcome {
        Outcome::Pass => String::new(),
        Outcome::Skip => format!("<skipped message=\"{seen}\"/>"),
        Outcome::Warn => {
            format!("<system-out>warning: {seen}\nexpected: {expected}\ndo: {advice}</system-out>")
        }
        Outcome::Fail => format!(
            "<failure message=\"{seen}\" type=\"contract\">expected: {expected}\ndo: {advice}</failure>"
        ),
    };
    let _ = writeln!(
        xml,
        "<testcase classname=\"{class}\" name=\"{name}\">{inside}</testcase>"
    );
}

/// Escapes text for XML. `Redaction` has removed invalid characters already.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            plain => escaped.push(plain),
        }
    }
    escaped
}
