//! Principals: the credentials and components that the gateway records with a change or a decision.

use serde::{Deserialize, Serialize};

use crate::id::{ApiKeyId, RunId};

/// Kind of a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PrincipalKind {
    /// An API key.
    ApiKey,
    /// The link of an interaction.
    Link,
    /// An event of the conversation.
    Event,
    /// A run: the run itself, another run of its runner and conversation, or its parent.
    Run,
    /// A person who signs in with the `OpenID` provider.
    Person,
    /// The configuration file.
    Config,
    /// A command that opens the database, for example `runnel token create`.
    Cli,
    /// A limit of the gateway.
    Gateway,
}

impl PrincipalKind {
    const ALL: [Self; 8] = [
        Self::ApiKey,
        Self::Link,
        Self::Event,
        Self::Run,
        Self::Person,
        Self::Config,
        Self::Cli,
        Self::Gateway,
    ];

    /// Returns the name used on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ApiKey => "api_key",
            Self::Link => "link",
            Self::Event => "event",
            Self::Run => "run",
            Self::Person => "person",
            Self::Config => "config",
            Self::Cli => "cli",
            Self::Gateway => "gateway",
        }
    }
}

/// The credential or component that made a change or a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Principal {
    pub kind: PrincipalKind,
    /// Id of the API key, event or run; `sub` of a person. Absent for other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name of the API key. Absent for other kinds, and for readers of role client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl From<PrincipalKind> for Principal {
    fn from(kind: PrincipalKind) -> Self {
        Self {
            kind,
            id: None,
            name: None,
        }
    }
}

impl From<ApiKeyId> for Principal {
    fn from(id: ApiKeyId) -> Self {
        Self::identified(PrincipalKind::ApiKey, id.to_string())
    }
}

impl From<RunId> for Principal {
    fn from(id: RunId) -> Self {
        Self::identified(PrincipalKind::Run, id.to_string())
    }
}

impl Principal {
    /// A principal of this kind with an id.
    pub fn identified(kind: PrincipalKind, id: impl Into<String>) -> Self {
        Self {
            id: Some(id.into()),
            ..kind.into()
        }
    }

    /// Returns the stored form: the kind, and the id after a colon. Names are not stored: they may change.
    pub fn stored(&self) -> String {
        match &self.id {
            Some(id) => format!("{}:{id}", self.kind.as_str()),
            None => self.kind.as_str().to_owned(),
        }
    }

    /// Reads the stored form.
    pub fn from_stored(text: &str) -> Option<Self> {
        // At the first colon: the subject of a person may contain others.
        let (kind, id) = match text.split_once(':') {
            Some((kind, id)) => (kind, Some(id.to_owned())),
            None => (text, None),
        };
        let kind = PrincipalKind::ALL
            .into_iter()
            .find(|one| one.as_str() == kind)?;
        Some(Self { id, ..kind.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_principals_read_back_equal() {
        for kind in PrincipalKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            for principal in [kind.into(), Principal::identified(kind, "interaction:a:b")] {
                assert_eq!(Principal::from_stored(&principal.stored()), Some(principal));
            }
        }
        for other in ["", "root", "API_KEY:1"] {
            assert_eq!(Principal::from_stored(other), None, "{other}");
        }
    }
}
