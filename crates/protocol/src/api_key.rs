//! API keys: credentials of clients and operators.

use serde::{Deserialize, Serialize};

use crate::id::ApiKeyId;

/// The routes that an API key opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum KeyRole {
    /// Make and list workspaces, and nothing in them. Made by the command line alone.
    Owner,
    /// Everything a client may, and endpoints, runners, agents, catalog, API keys of its workspace.
    Admin,
    /// Post events, read runs of its workspace.
    Client,
}

impl KeyRole {
    /// Every role.
    pub const ALL: [Self; 3] = [Self::Owner, Self::Admin, Self::Client];

    /// The name on the wire, in the database and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Admin => "admin",
            Self::Client => "client",
        }
    }

    /// The role of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// The body of `POST /v1/api-keys`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ApiKeySpec {
    /// A name to know it by; 1–128 bytes. Two keys may have the same.
    pub name: String,
    pub role: KeyRole,
}

/// An API key without the key. Times are epoch seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApiKey {
    pub id: ApiKeyId,
    pub name: String,
    pub role: KeyRole,
    /// The public part: the key begins with `rnl_`, this and `_`.
    pub prefix: String,
    pub created_at: i64,
    /// Since when it opens nothing; null while it lives.
    pub revoked_at: Option<i64>,
}

/// The answer to `POST /v1/api-keys`. It holds the key itself, so it does not print.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedApiKey {
    #[serde(flatten)]
    pub api_key: ApiKey,
    /// The key. Only its hash is kept: it is shown here and never again.
    pub key: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_has_one_name_everywhere() {
        for role in KeyRole::ALL {
            assert_eq!(KeyRole::parse(role.as_str()), Some(role));
            assert_eq!(serde_json::to_value(role).unwrap(), role.as_str());
        }
        for other in ["", "Admin", "root", "admin "] {
            assert_eq!(KeyRole::parse(other), None, "{other}");
        }
    }
}
