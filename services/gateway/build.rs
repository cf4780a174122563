//! Passes the commit of a release build to the compiler, for `runnel --version --verbose`.
//!
//! `RUNNEL_COMMIT` and `RUNNEL_COMMIT_DATE` name them for builds without a repository. Debug builds do not ask git:
//! each commit would compile the gateway again.

#![expect(clippy::disallowed_methods, reason = "the interface of build scripts")]

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if is_release {
        // Written with each commit and checkout.
        let log = Path::new("../../.git/logs/HEAD");
        if log.exists() {
            println!("cargo::rerun-if-changed={}", log.display());
        }
    }
    let commit = ["show", "--no-patch", "--format=%h", "HEAD"];
    let date = ["show", "--no-patch", "--format=%cs", "HEAD"];
    for (name, variable, arguments) in [
        ("RUNNEL_BUILD_COMMIT", "RUNNEL_COMMIT", commit),
        ("RUNNEL_BUILD_DATE", "RUNNEL_COMMIT_DATE", date),
    ] {
        println!("cargo::rerun-if-env-changed={variable}");
        let given = std::env::var(variable).ok();
        let found = given.or_else(|| is_release.then(|| git(&arguments)).flatten());
        println!("cargo::rustc-env={name}={}", found.unwrap_or_default());
    }
}

/// Output of git. `None` without git or a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
