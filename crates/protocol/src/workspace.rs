//! Workspaces: the tenants of a gateway. Each run, agent, endpoint, document and API key belongs to one
//! workspace.

use serde::{Deserialize, Serialize};

use crate::api_key::CreatedApiKey;

/// Maximum bytes of an id.
pub const ID_BYTES: usize = 64;
/// Maximum bytes of a name.
pub const NAME_BYTES: usize = 128;

/// Body of `POST /v1/workspaces`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WorkspaceSpec {
    /// Unique on the gateway and immutable: 1–64 letters `a`–`z`, digits, `-` and `_`, beginning with a letter
    /// or digit.
    pub id: String,
    /// Display name, 1–128 bytes without control characters. Default: the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Workspace {
    pub id: String,
    pub name: String,
    /// Creation time, in epoch seconds; 0 for the built-in workspace `default`.
    pub created_at: i64,
}

/// Response to `POST /v1/workspaces`. Contains a secret key, so the type has no `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedWorkspace {
    #[serde(flatten)]
    pub workspace: Workspace,
    /// First API key of the workspace, with role `admin`. Only this response contains its `key`.
    pub api_key: CreatedApiKey,
}

impl WorkspaceSpec {
    /// Returns the JSON pointer of the first invalid member and the error message.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
        let id = self.id.as_bytes();
        let begins_well = id.first().is_some_and(u8::is_ascii_alphanumeric);
        if !begins_well || id.len() > ID_BYTES || !id.iter().copied().all(is_plain) {
            return Some((
                "/id",
                "must have 1 to 64 of a-z, 0-9, - and _, beginning with a letter or digit",
            ));
        }
        let name = self.name.as_deref().unwrap_or(&self.id);
        let is_name = (1..=NAME_BYTES).contains(&name.len()) && !name.contains(char::is_control);
        (!is_name).then_some((
            "/name",
            "must have 1 to 128 bytes and no control characters",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_plain_ids_and_short_names() {
        let fault = |id: &str, name: Option<&str>| {
            let (id, name) = (id.to_owned(), name.map(str::to_owned));
            WorkspaceSpec { id, name }
                .fault()
                .map(|(pointer, _)| pointer)
        };
        let (longest, too_long) = ("a".repeat(64), "a".repeat(65));
        for id in ["a", "0", "team-a", "team_a", &longest] {
            assert_eq!(fault(id, None), None, "{id}");
        }
        for id in [
            "", "-a", "_a", "Team", "a/b", "a b", "\u{e4}", "a\n", &too_long,
        ] {
            assert_eq!(fault(id, None), Some("/id"), "{id}");
        }
        assert_eq!(fault("a", Some("Team \u{e4}")), None);
        for name in ["", "a\nb", &"a".repeat(129)] {
            assert_eq!(fault("a", Some(name)), Some("/name"), "{name}");
        }
    }
}
