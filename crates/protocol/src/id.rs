//! Typed ids: swapped arguments do not compile.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }
    };
}

uuid_id!(
    /// Id of a run, one execution of one runner for one event: a `UUIDv7`, lower case, hyphenated.
    RunId
);
uuid_id!(
    /// Id of a stored agent (the protocol's binding): a `UUIDv7`.
    AgentId
);
uuid_id!(
    /// Id of a registered runner endpoint: a `UUIDv7`.
    EndpointId
);
uuid_id!(
    /// Public id of an API key: a `UUIDv7`. It is not a credential.
    ApiKeyId
);
uuid_id!(
    /// Id of a job: a `UUIDv7`.
    JobId
);
uuid_id!(
    /// Id of a webhook: a `UUIDv7`.
    WebhookId
);
uuid_id!(
    /// Id of a schedule: a `UUIDv7`.
    ScheduleId
);
uuid_id!(
    /// Id of a source and of its API key: a `UUIDv7`.
    SourceId
);
uuid_id!(
    /// Id of an administrative change: a `UUIDv7`.
    ChangeId
);
uuid_id!(
    /// Id of an approval of tool calls: a `UUIDv7`.
    ApprovalId
);

/// The workspace that the first migration creates. Agents and endpoints of the configuration belong to it.
pub const DEFAULT_WORKSPACE: &str = "default";

/// Id of a workspace, the tenant of every row that a request creates. The first migration creates
/// [`DEFAULT_WORKSPACE`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkspaceId(pub String);

impl WorkspaceId {
    /// Returns the id as stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkspaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Runner id `plugin:{author}/{plugin}/{runner}`: three non-empty parts without `/`, at most 255 bytes in total. The
/// short form `{author}/{plugin}` is read as `plugin:{author}/{plugin}/default`, and never written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunnerId {
    author: String,
    plugin: String,
    runner: String,
}

/// Runner name of the short form.
const DEFAULT_RUNNER: &str = "default";

/// Error for a text that is not a runner id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRunnerId;

impl fmt::Display for InvalidRunnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must have the form plugin:{author}/{plugin}/{runner}, or {author}/{plugin}")
    }
}

impl std::error::Error for InvalidRunnerId {}

impl RunnerId {
    /// Returns `author/plugin`, common to all runners of one plugin.
    pub fn plugin(&self) -> String {
        // Without the prefix: storage areas of plugins are named by this pair.
        format!("{}/{}", self.author, self.plugin)
    }

    /// Returns the last part: the runner's name within its plugin.
    pub fn runner_name(&self) -> &str {
        &self.runner
    }
}

impl fmt::Display for RunnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Always the long form, so that one runner has one text in every database.
        write!(f, "plugin:{}/{}/{}", self.author, self.plugin, self.runner)
    }
}

impl FromStr for RunnerId {
    type Err = InvalidRunnerId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The short form has no prefix, so another prefix is no runner id.
        let long = text.strip_prefix("plugin:");
        if long.is_none() && text.contains(':') {
            return Err(InvalidRunnerId);
        }
        // The prefix is optional, but only the long form has a third part.
        let mut parts = long.unwrap_or(text).split('/');
        let mut next = || {
            // Ids end in URLs, logs and terminals: no white space and no control characters.
            parts
                .next()
                .filter(|part| !part.is_empty() && !part.contains(char::is_whitespace))
                .filter(|part| !part.contains(char::is_control))
                .map(str::to_owned)
                .ok_or(InvalidRunnerId)
        };
        let id = Self {
            author: next()?,
            plugin: next()?,
            runner: match long {
                Some(_) => next()?,
                None => DEFAULT_RUNNER.to_owned(),
            },
        };
        // Further parts would make two texts of one id. 255 bytes is the width of its column.
        if parts.next().is_some() || text.len() > 255 {
            return Err(InvalidRunnerId);
        }
        Ok(id)
    }
}

impl Serialize for RunnerId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RunnerId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // The error names the forms, because the id is written by hand in configurations.
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "openapi")]
mod schema {
    use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
    use utoipa::openapi::{RefOr, schema::SchemaType};

    impl utoipa::PartialSchema for super::RunnerId {
        fn schema() -> RefOr<Schema> {
            ObjectBuilder::new()
                .schema_type(SchemaType::new(Type::String))
                .description(Some(
                    "`plugin:{author}/{plugin}/{runner}`. Requests may have the short form `{author}/{plugin}` for the runner `default`.",
                ))
                .pattern(Some(
                    r"^(plugin:[^/\s]+/[^/\s]+/[^/\s]+|[^/\s:]+/[^/\s:]+)$",
                ))
                .examples(["plugin:runnel/echo/default"])
                .build()
                .into()
        }
    }

    impl utoipa::ToSchema for super::RunnerId {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runner_ids_round_trip() {
        for good in [
            "plugin:runnel/echo/default",
            "plugin:a/b/c",
            "plugin:作者/插件/默认",
        ] {
            assert_eq!(good.parse::<RunnerId>().unwrap().to_string(), good);
        }
    }

    #[test]
    fn short_runner_ids_name_the_default_runner() {
        let id: RunnerId = "acme/fast".parse().unwrap();
        assert_eq!(id.to_string(), "plugin:acme/fast/default");
        assert_eq!(id, "plugin:acme/fast/default".parse().unwrap());
    }

    #[test]
    fn rejects_malformed_runner_ids() {
        for bad in [
            "",
            "plugin:",
            "plugin:a/b",
            "plugin:a/b/c/d",
            "plugin:a//c",
            "x:a/b/c",
            "a/b/c",
            "a",
            "a/",
            "/b",
            "x:a/b",
            "a b/c",
            "plugin:a/b /c",
        ] {
            assert_eq!(bad.parse::<RunnerId>(), Err(InvalidRunnerId), "{bad}");
        }
    }
}
