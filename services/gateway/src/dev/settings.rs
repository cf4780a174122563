//! The playground's configuration: a template that is filled in at start.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context as _;
use langbot::migrate::toml_text;
use serde_json::json;

use super::connectors::ConnectorAgents;
use super::files::write_private;
use super::harness;
use super::model::{ChosenModel, ModelOrigin};
use super::sidecars::SidecarAddresses;
use crate::app::{Declared, declared};
use crate::config::{Config, sqlite_url};

const TEMPLATE: &str = include_str!("dev.toml");
/// Name of the file in the data directory.
pub(super) const SETTINGS_FILE: &str = "dev.toml";

/// Writes the configuration to `data_dir` and loads it.
pub(super) fn write_and_load(
    data_dir: &Path,
    listen: SocketAddr,
    sidecars: &SidecarAddresses,
    model: &ChosenModel,
    (harnesses, connectors): (&[String], &ConnectorAgents),
) -> anyhow::Result<(Config, Declared)> {
    let file = data_dir.join(SETTINGS_FILE);
    let agents = (harnesses, connectors);
    write_private(&file, &text(data_dir, listen, sidecars, model, agents))?;
    let read = || {
        let config = Config::load_file(&file)?;
        let declared = declared(&config)?;
        Ok::<_, crate::config::ConfigErrors>((config, declared))
    };
    read().with_context(|| match model.origin {
        ModelOrigin::File => "the model of ./runnel.toml cannot be used here".to_owned(),
        _ => format!("{} is not valid", file.display()),
    })
}

fn text(
    data_dir: &Path,
    listen: SocketAddr,
    sidecars: &SidecarAddresses,
    model: &ChosenModel,
    (harnesses, connectors): (&[String], &ConnectorAgents),
) -> String {
    let SidecarAddresses {
        agent,
        echo,
        clock,
        planner,
        harness,
        connectors: service,
    } = sidecars;
    let own: Vec<_> = [agent, echo, clock, planner]
        .into_iter()
        .chain(harness)
        .chain(service)
        .map(ToString::to_string)
        .collect();
    let allow: Vec<_> = own
        .iter()
        .chain(&model.rule)
        .map(|rule| toml_escaped(rule))
        .collect();
    let values = [
        ("# {models}", model.tables()),
        ("{allow}", allow.join("\", \"")),
        ("{listen}", listen.to_string()),
        ("{agent_url}", format!("http://{agent}")),
        ("{echo_url}", format!("http://{echo}")),
        ("{clock_url}", format!("http://{clock}")),
        ("{planner_url}", format!("http://{planner}")),
        ("{planner_models}", model.planner_models().join(", ")),
        (
            "{planner_fallbacks}",
            model.planner_models()[1..].join(", "),
        ),
        ("{planner_model}", toml_escaped(model.planner())),
        ("{database}", toml_escaped(&sqlite_url(data_dir))),
        ("{model_id}", toml_escaped(&model.model_id)),
        ("{data}", toml_escaped(&data_dir.to_string_lossy())),
    ];
    let fill = |text: String, (name, value): (&str, String)| text.replace(name, &value);
    let mut text = TEMPLATE.to_owned();
    if let Some(address) = harness {
        text.push_str(&harness::tables(harnesses, *address));
    }
    let mut text = values.into_iter().fold(text, fill);
    if let Some(address) = service {
        // Last, because an agent's configuration may contain text that looks like a placeholder.
        let data = toml_escaped(&data_dir.to_string_lossy());
        text.push_str(&connectors.tables(*address, &data));
    }
    text
}

/// Escapes a text for a TOML string, without the quotes.
fn toml_escaped(text: &str) -> String {
    let quoted = toml_text::value(&json!(text));
    quoted[1..quoted.len() - 1].to_owned()
}
