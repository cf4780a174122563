//! Logging to stderr, because stdout holds command output. Counters: [`metrics`]; traces: [`spans`], and
//! metrics of them: [`gen_ai`]; accepted deviations of peers: [`tolerance`].

pub mod gen_ai;
pub mod metrics;
pub mod otlp;
pub mod process;
pub mod spans;
pub mod tolerance;

mod event_fields;
mod json_lines;
mod local_time;
mod log_records;

pub use json_lines::for_terminals;
pub use local_time::time_of_day;

use std::io::{self, IsTerminal as _};
use std::str::FromStr as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{Directive, LevelFilter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Log filter in the syntax of `tracing` (`info,gateway=debug`).
const FILTER_VARIABLE: &str = "RUNNEL_LOG";

/// The crates that log for the gateway, in addition to `gateway` itself.
const GATEWAY: [&str; 10] = [
    "api",
    "blob_store",
    "conform",
    "keys",
    "knowledge",
    "models",
    "runner_client",
    "runs",
    "telemetry",
    "tools",
];

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For persons: time of day, level, message and fields.
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// Text if stderr is a terminal, else JSON.
    pub fn of_stderr() -> Self {
        if io::stderr().is_terminal() {
            Self::Text
        } else {
            Self::Json
        }
    }
}

/// Initializes logging to stderr. `RUNNEL_LOG` sets the filter; else `default_filter` applies, in the same syntax.
/// Later calls have no effect.
pub fn init(format: LogFormat, default_filter: &str) {
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter(default_filter))
        .with_ansi(has_colours())
        .with_writer(io::stderr);
    let installed = match format {
        LogFormat::Json => {
            let lines = lines.event_format(json_lines::JsonLines).finish();
            lines.with(log_records::LogRecords).try_init()
        }
        LogFormat::Text => lines
            .with_timer(local_time::TimeOfDay)
            .with_target(false)
            .compact()
            .finish()
            .with(log_records::LogRecords)
            .try_init(),
    };
    // A test or an embedding program has its own subscriber: keep it.
    if installed.is_err() {
        tracing::debug!("log lines already have a destination");
    }
}

/// True if stderr is a terminal that shows colours, and `NO_COLOR` is not set.
fn has_colours() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stderr().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

#[expect(
    clippy::disallowed_methods,
    reason = "the log begins before there is a configuration"
)]
fn filter(default_filter: &str) -> EnvFilter {
    let requested = std::env::var(FILTER_VARIABLE).unwrap_or_default();
    let requested = if requested.is_empty() {
        default_filter
    } else {
        &requested
    };
    with_module_defaults(with_default_level(&of_all_crates(requested)))
}

/// `gateway` in a filter applies to all crates of [`GATEWAY`], except those that the filter names itself.
fn of_all_crates(requested: &str) -> String {
    let directives = || requested.split(',').map(str::trim);
    let target = |directive: &str| {
        directive
            .split(['=', '['])
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let named: Vec<_> = directives().map(target).collect();
    let gateway = directives().filter_map(|directive| directive.strip_prefix("gateway"));
    let levels = gateway.filter(|level| level.is_empty() || level.starts_with('='));
    let mut filter = requested.to_owned();
    for level in levels {
        for name in GATEWAY {
            // A crate that the filter names keeps its own level.
            if !named.iter().any(|named| named == name) {
                filter.extend([",", name, level]);
            }
        }
    }
    filter
}

fn with_default_level(requested: &str) -> EnvFilter {
    // A word that is not a level names a module, which would silence all other modules.
    let names_a_level = requested
        .split(',')
        .any(|directive| directive.trim().parse::<LevelFilter>().is_ok());
    let base = if names_a_level { "" } else { "info," };
    EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .parse_lossy(format!("{base}{requested}"))
}

/// Adds our defaults for modules that the filter does not mention.
fn with_module_defaults(requested: EnvFilter) -> EnvFilter {
    let requested_text = requested.to_string();
    let ours = [
        // Migration messages are routine and would hide others.
        ("sea_orm_migration", "sea_orm_migration=warn"),
        // The client logs every reconnect attempt; we log once per outage.
        ("async_nats", "async_nats=error"),
        // It logs each request with its content. Relevant failures reach us as errors.
        ("rmcp", "rmcp=off"),
    ];
    let missing = ours
        .into_iter()
        .filter(|(name, _)| !requested_text.contains(name));
    missing.fold(requested, |filter, (_, text)| {
        filter.add_directive(Directive::from_str(text).expect("the directive is well formed"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_filters_keep_the_default_level() {
        for (requested, has_info) in [
            ("inof", true),
            ("info;gateway=debug", true),
            ("gateway=debug", true),
            ("", true),
            ("warn", false),
            ("gateway=debug,warn", false),
        ] {
            let filter = with_default_level(requested).to_string();
            let found = filter.split(',').any(|directive| directive == "info");
            assert_eq!(found, has_info, "{requested}: {filter}");
        }
    }

    #[test]
    fn gateway_log_level_covers_all_crates() {
        let level_of = |requested: &str, name: &str| {
            let filter = with_default_level(&of_all_crates(requested)).to_string();
            let prefix = format!("{name}=");
            let found: Vec<_> = filter
                .split(',')
                .filter_map(|one| one.strip_prefix(&prefix))
                .collect();
            found.join(" ")
        };
        for name in GATEWAY {
            assert_eq!(level_of("info,gateway=debug", name), "debug", "{name}");
            assert_eq!(level_of("info,store=debug", name), "", "{name}");
        }
        assert_eq!(level_of("runs=trace, gateway=debug", "runs"), "trace");
        assert_eq!(level_of("info,gateways=debug", "runs"), "");
    }

    #[test]
    fn explicit_filters_override_module_defaults() {
        let check = |requested: &str, expected: &[&str]| {
            let filter = with_module_defaults(EnvFilter::new(requested)).to_string();
            let mut found: Vec<_> = filter.split(',').collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{requested}");
        };
        let quiet = [
            "async_nats=error",
            "info",
            "rmcp=off",
            "sea_orm_migration=warn",
        ];
        check("info", &quiet);
        let loud = [
            "async_nats=debug",
            "info",
            "rmcp=off",
            "sea_orm_migration=warn",
        ];
        check("info,async_nats=debug", &loud);
    }
}
