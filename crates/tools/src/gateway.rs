//! Built-in tools.

use chrono::{DateTime, FixedOffset, SecondsFormat, Utc};
use protocol::JsonObject;
use protocol::resources::{EffectSource, ToolEffect, ToolOperation, ToolResource};
use serde_json::{Value, json};

use clock::Clock;
use egress::upstream::UpstreamError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayTool {
    CurrentTime,
}

impl GatewayTool {
    /// The tool of that name.
    pub fn parse(name: &str) -> Option<Self> {
        (name == "get_current_time").then_some(Self::CurrentTime)
    }

    /// The tool as listed in the catalog.
    pub fn resource(self) -> ToolResource {
        let parameters = json!({
            "type": "object",
            "properties": {"utc_offset": {
                "type": "string",
                "description": "The offset of the wanted local time from UTC, like +08:00. UTC when it is absent.",
                "maxLength": 6,
                "pattern": "^[+-](0[0-9]|1[0-4]):[0-5][0-9]$",
            }},
            "additionalProperties": false,
        });
        ToolResource {
            tool_name: "get_current_time".to_owned(),
            tool_type: Some("gateway".to_owned()),
            description: Some("Returns the date and the time of day.".to_owned()),
            operations: ToolOperation::ALL.to_vec(),
            parameters: parameters.as_object().cloned(),
            source: Some("gateway".to_owned()),
            effect: Some(ToolEffect::Read),
            idempotent: Some(true),
            effect_source: Some(EffectSource::Operator),
            approval: None,
        }
    }

    pub(super) fn call(
        self,
        clock: Clock,
        parameters: &JsonObject,
    ) -> Result<Value, UpstreamError> {
        match self {
            Self::CurrentTime => {
                let offset = parameters.get("utc_offset").and_then(Value::as_str);
                time_at(clock.now_ms(), offset.unwrap_or("+00:00"))
            }
        }
    }
}

fn time_at(now_ms: i64, offset: &str) -> Result<Value, UpstreamError> {
    let refused = |what: &str| UpstreamError::Rejected(format!("{what} is out of range"));
    let offset: FixedOffset = offset.parse().map_err(|_| refused("utc_offset"))?;
    let utc = DateTime::<Utc>::from_timestamp_millis(now_ms).ok_or_else(|| refused("the time"))?;
    let local = utc.with_timezone(&offset);
    Ok(json!({
        "utc": utc.to_rfc3339_opts(SecondsFormat::Secs, true),
        "local": local.to_rfc3339_opts(SecondsFormat::Secs, true),
        "weekday": local.format("%A").to_string(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::tool_name::GATEWAY_TOOLS;

    #[test]
    fn returns_time_at_requested_offset() {
        let time = time_at(1_795_353_000_000, "+08:00").unwrap();
        assert_eq!(time["utc"], "2026-11-22T13:10:00Z");
        assert_eq!(time["local"], "2026-11-22T21:10:00+08:00");
        assert_eq!(time["weekday"], "Sunday");
        let time = time_at(1_795_353_000_000, "-12:30").unwrap();
        assert_eq!(time["local"], "2026-11-22T00:40:00-12:30");
    }

    #[test]
    fn implements_every_configurable_built_in_tool() {
        for name in GATEWAY_TOOLS {
            assert_eq!(GatewayTool::parse(name).unwrap().resource().tool_name, name);
        }
    }
}
