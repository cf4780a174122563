//! Harnesses that run as another user than the service.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Once;

use serde_json::json;

use crate::support::harness::{HarnessFixture, SYSTEM_PYTHON, fake_for_all, user_message};
use crate::support::skipped;

static NO_ROOT: Once = Once::new();

/// True if the service can start harnesses as the unprivileged user. Prints a notice otherwise.
fn can_change_user() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new(SYSTEM_PYTHON).exists();
    if !can {
        let reason = "only root changes the user, and the system needs a python3";
        skipped(&NO_ROOT, "root", reason);
    }
    can
}

fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("runnel-users-{}", uuid::Uuid::new_v4().simple()))
}

/// Owner of an entry, without following links.
fn user_of(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().uid()
}

#[tokio::test]
async fn workspaces_homes_and_sessions_belong_to_the_user() {
    if !can_change_user() {
        return;
    }
    let folder = folder();
    let mut setup = fake_for_all("good", &folder);
    setup.settings = "user = \"nobody\"";
    setup.config = "mode = \"full\"";
    let house = HarnessFixture::open(setup).await;
    let mut event = user_message("permit made.txt", true);
    event["input"]["contents"] = json!([
        {"type": "file_base64", "file_base64": "aGVsbG8=", "file_name": "note.txt"},
    ]);
    let run = house.client.post(&event).await.run_id();
    let ended = house.ended(&run).await;
    assert_eq!(ended.ending(), "completed", "{}", ended.run);
    let work = house.workspace();
    let home = work.with_file_name("home");
    let entries = [
        work.clone(),
        work.join("made.txt"),
        work.join("inbox/note.txt"),
        work.join("outbox"),
        home.join("tmp"),
        home.join("acp-sessions.json"),
    ];
    for entry in entries {
        assert_eq!(user_of(&entry), 65_534, "{}", entry.display());
    }
    assert_eq!(user_of(work.parent().unwrap()), 0);
    // The session continues, so its file is readable.
    let second = house.ask("again").await;
    assert_eq!(second.ending(), "completed", "{}", second.run);
    assert!(second.of("state.updated").is_empty());
    let _ = std::fs::remove_dir_all(folder);
}
