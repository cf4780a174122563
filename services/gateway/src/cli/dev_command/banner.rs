//! The banner of the playground: addresses first, then its parts, then what to try.

use std::fmt::Write as _;
use std::path::Path;

use crate::dev::{AgentHint, ModelOrigin, Playground};
use cli::output;

/// All lines of the banner.
pub(super) fn text(playground: &Playground) -> String {
    let Playground { url, key, .. } = playground;
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("runnel {version}  {url}\n");
    let mut line = |word: &str, rest: &str| {
        let _ = writeln!(text, "{word:<8} {rest}");
    };
    if playground.has_console {
        // The fragment is not sent to the gateway, so the key is in no log.
        line("console", &format!("{url}/console/#key={key}"));
    }
    line("docs", &format!("{url}/docs"));
    line("key", key);
    line(
        "env",
        &format!("export RUNNEL_URL={url} RUNNEL_API_KEY={key}"),
    );
    let settings = playground.settings.iter().map(|file| relative(file));
    line("settings", &settings.collect::<Vec<_>>().join(", "));
    match &playground.agent {
        Some((agent, runner)) => line("agent", &format!("{agent} → {runner}")),
        None => line(
            "agent",
            "none gets messages; `runnel explain` shows the reason",
        ),
    }
    line("model", &model(playground));
    if let Some(local) = &playground.local_model {
        let offer = format!(
            "{} at {}: OPENAI_BASE_URL={} runnel dev takes it",
            local.model, local.base_url, local.base_url
        );
        line("found", &offer);
    }
    line("tools", &format!("{}, by MCP", playground.tools.join(", ")));
    let base = &playground.knowledge_base;
    let passages = output::counted(playground.passages, "passage");
    line("kb", &format!("{base}, {passages}"));
    for hint in &playground.hints {
        let AgentHint {
            word,
            agent,
            message,
        } = hint;
        line(
            word,
            &format!("{agent}: runnel send --conversation {agent} \"{message}\""),
        );
    }
    for url in &playground.runners {
        let url = url.trim_end_matches('/');
        let secret = match playground.secret_line {
            Some(_) => "start it with this secret:",
            None => "its secret is RUNNER_SECRET of this environment",
        };
        line("runner", &format!("{url}, {secret}"));
    }
    if let Some(secret) = &playground.secret_line {
        line("", secret);
    }
    for note in &playground.notes {
        line("note", note);
    }
    line("send", "runnel send \"What is Runnel?\"");
    line(
        "plan",
        "runnel send --conversation planner \"Put a note about Runnel on the board\"",
    );
    let body = r#"{"event_type":"message.received","input":{"text":"What is Runnel?"},"conversation":{"conversation_id":"dev"}}"#;
    let curl = format!(
        "curl -N {url}/v1/events -H 'Authorization: Bearer {key}' \\\n           \
         -H 'Content-Type: application/json' -H 'Accept: text/event-stream' \\\n           \
         -d '{body}'"
    );
    line("try", &curl);
    text.truncate(text.trim_end().len());
    text
}

fn model(playground: &Playground) -> String {
    let model = &playground.model;
    match &playground.model_origin {
        ModelOrigin::Script { file } => format!(
            "scripted, by {}; set OPENAI_API_KEY or OPENAI_BASE_URL for a real one",
            relative(file)
        ),
        ModelOrigin::Environment { base_url } => format!("{model} at {base_url}, by OPENAI_…"),
        ModelOrigin::File => format!("{model} of ./runnel.toml"),
    }
}

/// The path from the working directory, if it is inside.
fn relative(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let inside = path.strip_prefix(&here).unwrap_or(path);
    if inside.is_absolute() {
        inside.display().to_string()
    } else {
        Path::new(".").join(inside).display().to_string()
    }
}
