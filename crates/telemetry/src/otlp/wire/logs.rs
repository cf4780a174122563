//! The subset of `logs/v1/logs.proto` in use.

use prost::Message;
use tracing::Level;

use super::{AnyValue, KeyValue, RESOURCE_SCHEMA, Resource, Scope, Value, key_value, nanos, scope};
use crate::log_records::LogRecord;

#[derive(Clone, PartialEq, Message)]
pub(in crate::otlp) struct LogsRequest {
    #[prost(message, repeated, tag = "1")]
    resource_logs: Vec<ResourceLogs>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_logs: Vec<ScopeLogs>,
    #[prost(string, tag = "3")]
    schema_url: String,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeLogs {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    log_records: Vec<WireRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct WireRecord {
    #[prost(fixed64, tag = "1")]
    time_unix_nano: u64,
    #[prost(int32, tag = "2")]
    severity_number: i32,
    #[prost(string, tag = "3")]
    severity_text: String,
    #[prost(message, optional, tag = "5")]
    body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "11")]
    observed_time_unix_nano: u64,
}

/// An export request for `records`.
pub(in crate::otlp) fn request(resource: &Resource, records: &[LogRecord]) -> LogsRequest {
    LogsRequest {
        resource_logs: vec![ResourceLogs {
            resource: Some(resource.clone()),
            scope_logs: vec![ScopeLogs {
                scope: Some(scope()),
                log_records: records.iter().map(wire_record).collect(),
            }],
            schema_url: RESOURCE_SCHEMA.to_owned(),
        }],
    }
}

fn wire_record(record: &LogRecord) -> WireRecord {
    // Collectors group records by their source in the code.
    let target = key_value("code.namespace", Value::Text(record.target.to_owned()));
    let fields = record.fields.iter();
    let fields = fields.map(|(name, value)| key_value(name, of_json(value)));
    WireRecord {
        time_unix_nano: nanos(record.at),
        severity_number: severity(record.level),
        severity_text: record.level.as_str().to_owned(),
        body: Some(AnyValue {
            value: Some(Value::Text(record.message.clone())),
        }),
        attributes: fields.chain([target]).collect(),
        observed_time_unix_nano: nanos(record.at),
    }
}

/// `SeverityNumber` of the protocol.
fn severity(level: Level) -> i32 {
    match level {
        Level::TRACE => 1,
        Level::DEBUG => 5,
        Level::INFO => 9,
        Level::WARN => 13,
        Level::ERROR => 17,
    }
}

fn of_json(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Bool(flag) => Value::Flag(*flag),
        serde_json::Value::String(text) => Value::Text(text.clone()),
        serde_json::Value::Number(number) => number.as_i64().map_or_else(
            || Value::Fraction(number.as_f64().unwrap_or_default()),
            Value::Number,
        ),
        other => Value::Text(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
    use opentelemetry_proto::tonic::common::v1::any_value::Value as Read;
    use opentelemetry_proto::tonic::logs::v1::SeverityNumber;
    use serde_json::json;

    use super::*;
    use crate::otlp::wire::resource;

    #[test]
    fn official_decoder_reads_our_records() {
        let fields = json!({"grace_ms": 5, "is_last": true, "share": 0.5, "run.id": "7"});
        let written = LogRecord {
            at: Duration::from_millis(1_795_291_200_123),
            level: Level::WARN,
            target: "runs::relay",
            message: "it broke".to_owned(),
            fields: fields.as_object().unwrap().clone(),
        };
        let bytes = request(&resource("mine", "one"), &[written]).encode_to_vec();
        let read = ExportLogsServiceRequest::decode(bytes.as_slice()).unwrap();
        let of_us = &read.resource_logs[0];
        assert_eq!(of_us.resource.as_ref().unwrap().attributes.len(), 3);
        let record = &of_us.scope_logs[0].log_records[0];
        assert_eq!(record.severity_number(), SeverityNumber::Warn);
        assert_eq!(record.severity_text, "WARN");
        assert_eq!(record.time_unix_nano, 1_795_291_200_123_000_000);
        let text = |text: &str| Read::StringValue(text.to_owned());
        let body = record.body.clone().and_then(|body| body.value);
        assert_eq!(body, Some(text("it broke")));
        let attributes = record.attributes.iter().map(|one| {
            let value = one.value.clone().and_then(|value| value.value);
            (one.key.as_str(), value.unwrap())
        });
        assert_eq!(
            attributes.collect::<Vec<_>>(),
            [
                ("grace_ms", Read::IntValue(5)),
                ("is_last", Read::BoolValue(true)),
                ("run.id", text("7")),
                ("share", Read::DoubleValue(0.5)),
                ("code.namespace", text("runs::relay")),
            ]
        );
    }
}
