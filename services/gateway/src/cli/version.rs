//! `runnel --version`, with details of the build by `--verbose`.

use serde_json::json;

use crate::cli::output;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Commit and its date, set by the build script; empty if the build knows none.
const COMMIT: &str = env!("RUNNEL_BUILD_COMMIT");
const COMMIT_DATE: &str = env!("RUNNEL_BUILD_DATE");
const UNKNOWN: &str = "unknown";

/// Features of this build.
fn features() -> Vec<&'static str> {
    let all = [("nats", cfg!(feature = "nats"))];
    let enabled = all.into_iter().filter(|(_, is_on)| *is_on);
    enabled.map(|(name, _)| name).collect()
}

/// Prints the version.
pub(super) fn print(is_verbose: bool, json: bool) {
    let known = |text: &'static str| if text.is_empty() { UNKNOWN } else { text };
    let (commit, date, features) = (known(COMMIT), known(COMMIT_DATE), features());
    let platform = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    match (json, is_verbose) {
        (true, true) => {
            output::document(&json!({"version": VERSION, "commit": commit, "date": date,
            "features": features, "platform": platform, "profile": profile}));
        }
        (true, false) => output::document(&json!({ "version": VERSION })),
        (false, false) => output::line(&format!("runnel {VERSION}")),
        (false, true) => {
            let features = features.join(", ");
            output::line(&format!(
                "runnel {VERSION}\ncommit   {commit}\ndate     {date}\nfeatures {features}\n\
                 platform {platform}\nprofile  {profile}"
            ));
        }
    }
}
