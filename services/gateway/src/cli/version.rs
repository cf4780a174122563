//! `runnel --version`, with details of the build by `--verbose`.

use serde_json::json;

use cli::output::{self, OutputFormat};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Commit and its date, set by the build script; empty if the build knows none.
const COMMIT: &str = env!("RUNNEL_BUILD_COMMIT");
const COMMIT_DATE: &str = env!("RUNNEL_BUILD_DATE");
const UNKNOWN: &str = "unknown";

/// Version with the commit and its date, which distinguish builds between two releases.
pub(super) fn with_commit() -> String {
    describe(VERSION, COMMIT, COMMIT_DATE)
}

fn describe(version: &str, commit: &str, date: &str) -> String {
    match (commit, date) {
        ("", _) => version.to_owned(),
        (commit, "") => format!("{version} ({commit})"),
        (commit, date) => format!("{version} ({commit}, {date})"),
    }
}

/// Features of this build.
fn features() -> Vec<&'static str> {
    let all = [
        ("connectors", cfg!(feature = "connectors")),
        ("console", cfg!(feature = "console")),
        ("graph", cfg!(feature = "graph")),
        ("harness", cfg!(feature = "harness")),
        ("nats", cfg!(feature = "nats")),
    ];
    let enabled = all.into_iter().filter(|(_, is_on)| *is_on);
    enabled.map(|(name, _)| name).collect()
}

pub(super) fn print(format: OutputFormat) {
    match format {
        OutputFormat::Json => {
            let (commit, date) = (or_unknown(COMMIT), or_unknown(COMMIT_DATE));
            output::document(&json!({"version": VERSION, "commit": commit, "date": date}));
        }
        OutputFormat::Text => output::line(&format!("runnel {}", with_commit())),
    }
}

/// Prints also features, platform and profile.
pub(super) fn print_details(format: OutputFormat) {
    let (commit, date, features) = (or_unknown(COMMIT), or_unknown(COMMIT_DATE), features());
    let platform = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    match format {
        OutputFormat::Json => {
            output::document(&json!({"version": VERSION, "commit": commit, "date": date,
            "features": features, "platform": platform, "profile": profile}));
        }
        OutputFormat::Text => {
            let features = features.join(", ");
            output::line(&format!(
                "runnel {VERSION}\ncommit   {commit}\ndate     {date}\nfeatures {features}\n\
                 platform {platform}\nprofile  {profile}"
            ));
        }
    }
}

fn or_unknown(text: &'static str) -> &'static str {
    if text.is_empty() { UNKNOWN } else { text }
}

#[cfg(test)]
mod tests {
    use super::describe;

    #[test]
    fn version_names_commit_and_date() {
        for (commit, date, expected) in [
            ("ed645d97", "2026-11-28", "0.1.0 (ed645d97, 2026-11-28)"),
            ("ed645d97", "", "0.1.0 (ed645d97)"),
            ("", "", "0.1.0"),
        ] {
            assert_eq!(describe("0.1.0", commit, date), expected);
        }
    }
}
