//! Runners of the command line: `runnel dev --runner URL`. A single runner has the secret of the environment, if there
//! is one. Else they share a secret, which is kept in the data directory together with the ids that each has listed.
//! An agent of their own binds each listed runner: the first one gets all events, every other one the conversation of
//! its name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use egress::parse_plain_url;
use langbot::migrate::toml_text;
use protocol::id::RunnerId;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use url::Url;

use super::model::rule_for;
use crate::config::{SecretError, SecretRef};
use cli::dev_file::write_private;
use secrets::signature::SigningSecret;

const SECRET_FILE: &str = "runner.secret";
const MEMORY_FILE: &str = "runners.json";
/// Variable by which the examples read their secret, and `dev` that of a single runner.
pub(crate) const SECRET_VARIABLE: &str = "RUNNER_SECRET";
/// Above any agent that gives no priority.
const PRIORITY: i64 = 1000;

const ENDPOINT: &str = "
# A runner of the command line: `runnel dev --runner {url}`.
[[runner_endpoints]]
name = {name}
base_url = {url}
secret = {secret}
";

/// Grants all that a manifest may ask for: the manifest decides.
const AGENT: &str = r#"
[[agents]]
name = {name}
event_types = ["*"]
scope = {scope}
priority = {priority}
runner_id = {runner_id}
concurrency = "enqueue"

[agents.resource_policy]
models = "*"
tools = "*"
knowledge_bases = "*"
skills = "*"
files = "*"
agents = "*"
storage = ["plugin", "workspace", "binding"]
history = ["page", "search"]
events = ["get", "page"]
artifacts = ["metadata", "read", "create"]

[agents.state_policy]
enabled = true
scopes = ["conversation", "actor", "subject", "runner", "binding"]

[agents.delivery_policy]
interactions = true
"#;

/// The runners of the command line.
pub(super) struct OwnRunners {
    pub(super) endpoints: Vec<OwnEndpoint>,
    secret: OwnSecret,
    has_unused_variable: bool,
    data_dir: PathBuf,
}

/// Secret of the endpoints.
enum OwnSecret {
    /// There is no endpoint.
    None,
    /// Stored in the data directory.
    Stored(SecretString),
    /// Read from the variable `RUNNER_SECRET`.
    Given,
}

/// An endpoint of the command line.
pub(super) struct OwnEndpoint {
    pub(super) name: String,
    pub(super) url: Url,
    /// Rule that it needs in `egress.allow`.
    rule: Option<String>,
    /// Ids that it has listed last.
    pub(super) runners: Vec<RunnerId>,
}

impl OwnRunners {
    /// Reads the URLs, and what the data directory remembers of them.
    pub(super) async fn open(data_dir: &Path, urls: &[String]) -> anyhow::Result<Self> {
        let memory = std::fs::read(data_dir.join(MEMORY_FILE)).unwrap_or_default();
        // A lost memory costs nothing: the ids are listed again.
        let mut memory: BTreeMap<String, Vec<RunnerId>> =
            serde_json::from_slice(&memory).unwrap_or_default();
        let mut endpoints: Vec<OwnEndpoint> = Vec::new();
        for (index, text) in urls.iter().enumerate() {
            let url = parse_plain_url(text).map_err(|error| {
                anyhow!("--runner {error}; give one like http://127.0.0.1:9100")
            })?;
            // The gateway appends paths to the URL.
            ensure!(url.query().is_none(), "--runner {url} must have no query");
            ensure!(
                endpoints.iter().all(|other| other.url != url),
                "--runner {url} is given twice"
            );
            endpoints.push(OwnEndpoint {
                name: match index {
                    0 => "runner".to_owned(),
                    _ => format!("runner-{}", index + 1),
                },
                rule: rule_for(&url).await?,
                runners: memory.remove(url.as_str()).unwrap_or_default(),
                url,
            });
        }
        let is_given = !endpoints.is_empty() && is_secret_given()?;
        let secret = match endpoints.len() {
            0 => OwnSecret::None,
            1 if is_given => OwnSecret::Given,
            _ => OwnSecret::Stored(stored_secret(&data_dir.join(SECRET_FILE))?),
        };
        Ok(Self {
            has_unused_variable: is_given && matches!(secret, OwnSecret::Stored(_)),
            secret,
            endpoints,
            data_dir: data_dir.to_owned(),
        })
    }

    /// The line that gives the secret to a runner.
    pub(super) fn export_line(&self) -> Option<String> {
        match &self.secret {
            OwnSecret::Stored(secret) => Some(format!(
                "export {SECRET_VARIABLE}={}",
                secret.expose_secret()
            )),
            OwnSecret::None | OwnSecret::Given => None,
        }
    }

    /// A line about a secret of the environment that is not used.
    pub(super) fn unused_line(&self) -> Option<String> {
        self.has_unused_variable.then(|| {
            format!("{SECRET_VARIABLE} of this environment is not used: several --runner share the secret above")
        })
    }

    /// Remembers the ids that the endpoint lists.
    pub(super) fn remember(&mut self, index: usize, runners: Vec<RunnerId>) -> anyhow::Result<()> {
        if self.endpoints[index].runners == runners {
            return Ok(());
        }
        self.endpoints[index].runners = runners;
        let memory = self.endpoints.iter();
        let memory: BTreeMap<_, _> = memory.map(|one| (one.url.as_str(), &one.runners)).collect();
        let text = serde_json::to_string(&memory)?;
        write_private(&self.data_dir.join(MEMORY_FILE), &text)
    }

    pub(super) fn rules(&self) -> impl Iterator<Item = &String> {
        self.endpoints.iter().filter_map(|one| one.rule.as_ref())
    }

    /// Ids of all runners, each once.
    pub(super) fn ids(&self) -> Vec<&RunnerId> {
        let mut ids: Vec<&RunnerId> = Vec::new();
        for id in self.endpoints.iter().flat_map(|one| &one.runners) {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    }

    /// TOML tables of the endpoints and agents. `taken`: names of the other agents.
    pub(super) fn tables(&self, taken: &[&str]) -> String {
        // Filled in as TOML values: a URL or an id may contain quotes.
        let value = |text: &str| toml_text::value(&json!(text));
        let secret = match self.secret {
            OwnSecret::Given => SecretRef::Environment(SECRET_VARIABLE.to_owned()),
            OwnSecret::None | OwnSecret::Stored(_) => {
                SecretRef::File(self.data_dir.join(SECRET_FILE))
            }
        };
        let secret = secret.to_string();
        let mut text = String::new();
        for endpoint in &self.endpoints {
            let table = ENDPOINT.replace("{url}", &value(endpoint.url.as_str()));
            let table = table.replace("{name}", &value(&endpoint.name));
            text.push_str(&table.replace("{secret}", &value(&secret)));
        }
        let ids = self.ids();
        for (index, (id, name)) in ids.iter().zip(names(&ids, taken)).enumerate() {
            let scope = match index {
                0 => "{ kind = \"workspace\" }".to_owned(),
                _ => format!(
                    "{{ kind = \"conversation\", conversation_id = {} }}",
                    value(&name)
                ),
            };
            let agent = AGENT.replace("{name}", &value(&name));
            let agent = agent.replace("{scope}", &scope);
            let agent = agent.replace("{priority}", &PRIORITY.to_string());
            text.push_str(&agent.replace("{runner_id}", &value(&id.to_string())));
        }
        text
    }
}

/// Agent names for these runners: the middle or last part of the id, else the full id.
fn names(ids: &[&RunnerId], taken: &[&str]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for id in ids {
        let full_id = id.to_string();
        let parts: Vec<_> = full_id.split(['/', ':']).collect();
        let short = match parts[..] {
            [.., plugin, "default"] => plugin,
            [.., runner] => runner,
            [] => full_id.as_str(),
        };
        let is_free = !taken.contains(&short) && names.iter().all(|name| name != short);
        names.push(if is_free {
            short.to_owned()
        } else {
            full_id.clone()
        });
    }
    names
}

/// True if the environment has a secret. One that cannot be used is an error.
fn is_secret_given() -> anyhow::Result<bool> {
    let secret = match SecretRef::Environment(SECRET_VARIABLE.to_owned()).resolve() {
        // An empty variable counts as unset: it holds no secret.
        Err(SecretError::NotSet(_) | SecretError::Empty(_)) => return Ok(false),
        secret => secret?,
    };
    SigningSecret::parse(&secret).with_context(|| {
        format!("{SECRET_VARIABLE} of this environment cannot be used; unset it, or correct it")
    })?;
    Ok(true)
}

/// The secret of the file. The first start creates it.
fn stored_secret(file: &Path) -> anyhow::Result<SecretString> {
    if let Ok(text) = std::fs::read_to_string(file) {
        let secret = SecretString::from(text.trim().to_owned());
        SigningSecret::parse(&secret).with_context(|| {
            format!(
                "{} cannot be used; delete it to get a new secret",
                file.display()
            )
        })?;
        return Ok(secret);
    }
    let secret = SigningSecret::generate();
    write_private(file, &secret)?;
    Ok(SecretString::from(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_agents_after_their_runners() {
        let check = |ids: &[&str], expected: &[&str]| {
            let ids: Vec<RunnerId> = ids.iter().map(|id| id.parse().unwrap()).collect();
            let ids: Vec<_> = ids.iter().collect();
            assert_eq!(names(&ids, &["hello"]), expected);
        };
        check(&["plugin:acme/fast/default"], &["fast"]);
        check(
            &["plugin:acme/kit/slow", "plugin:acme/other/slow"],
            &["slow", "plugin:acme/other/slow"],
        );
        check(
            &["plugin:acme/hello/default"],
            &["plugin:acme/hello/default"],
        );
    }
}
