//! API keys: credentials of clients and operators.

use serde::{Deserialize, Serialize};

use crate::id::{AgentId, ApiKeyId};
use crate::limiter::OwnLimits;

/// Routes that an API key can call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum KeyRole {
    /// Creates and lists workspaces, without access to their content. Only the command line creates owner keys.
    Owner,
    /// Everything a client key can do, and endpoints, runners, agents, catalog and API keys of its workspace.
    Admin,
    /// Everything a viewer key can do; it also cancels and retries runs, and answers interactions.
    Operator,
    /// Reads what an admin key reads, and changes nothing.
    Viewer,
    /// Reads interactions and the runs that wait for them, and answers them.
    Approver,
    /// Posts events and reads runs of its workspace.
    Client,
}

impl KeyRole {
    /// All roles.
    pub const ALL: [Self; 6] = [
        Self::Owner,
        Self::Admin,
        Self::Operator,
        Self::Viewer,
        Self::Approver,
        Self::Client,
    ];

    /// Returns the name used on the wire, in the database and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Admin => "admin",
            Self::Operator => "operator",
            Self::Viewer => "viewer",
            Self::Approver => "approver",
            Self::Client => "client",
        }
    }

    /// Parses the name of a role.
    pub fn parse(text: &str) -> Option<Self> {
        // By the names of the wire, so that a new role needs no second table.
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// Body of `POST /v1/api-keys`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ApiKeySpec {
    /// Display name, 1–128 bytes. Names need not be unique.
    pub name: String,
    pub role: KeyRole,
    /// Epoch seconds, in the future. From this time on the key is refused. Absent: the key does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    /// Names or ids of 1 to 16 agents. A key of role client or approver with this list reaches these agents
    /// only: their events, runs and interactions are all that it posts and sees. Absent: all agents of the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 16))]
    pub agents: Option<Vec<String>>,
    /// Limits of the runs that the key starts, for roles admin, operator and client. Absent: no limits of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<OwnLimits>,
}

/// An API key without its secret. Times are epoch seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApiKey {
    pub id: ApiKeyId,
    pub name: String,
    pub role: KeyRole,
    /// Public part of the key. A key begins with `rnl_`, the prefix and `_`.
    pub prefix: String,
    pub created_at: i64,
    /// Time from which the key is refused. Null: the key does not expire.
    pub expires_at: Option<i64>,
    /// Time of the last request with the key, to about a minute. Null before the first request.
    pub last_used_at: Option<i64>,
    /// Ids of the only agents that the key reaches. Null: all agents of the workspace.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<String>>))]
    pub agents: Option<Vec<AgentId>>,
    /// Limits of the runs that the key starts. Null: no limits of its own.
    pub limits: Option<OwnLimits>,
    /// Time of the revocation. Null for an active key.
    pub revoked_at: Option<i64>,
}

/// The API key of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OwnKey {
    #[serde(flatten)]
    pub api_key: ApiKey,
    /// The workspace of the key. Null for role owner, which opens no workspace.
    pub workspace_id: Option<String>,
}

/// Sign-in of people with an `OpenID` provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SignInSettings {
    /// `iss` of the provider's tokens.
    pub issuer: String,
    /// `aud` that a token must have.
    pub audience: String,
    /// Public client for the device flow and for the code flow. Absent: the gateway has neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// Scopes for both flows, separated by spaces.
    pub scope: String,
    /// Of the code flow with PKCE and `S256` (RFC 7636), if the provider has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization_endpoint: Option<String>,
    /// Of the device flow (RFC 8628), if the provider has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_authorization_endpoint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_endpoint: Option<String>,
}

/// Response to `POST /v1/api-keys` and `POST /v1/sessions`. Contains the secret key, so the type has no `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedApiKey {
    #[serde(flatten)]
    pub api_key: ApiKey,
    /// The secret key. The gateway stores only its hash and returns the key only in this response.
    pub key: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_have_one_name_everywhere() {
        for role in KeyRole::ALL {
            assert_eq!(KeyRole::parse(role.as_str()), Some(role));
            assert_eq!(serde_json::to_value(role).unwrap(), role.as_str());
        }
        for other in ["", "Admin", "root", "admin "] {
            assert_eq!(KeyRole::parse(other), None, "{other}");
        }
    }
}
