//! The subset of OTLP messages in use (opentelemetry-proto 1.x, `trace/v1/trace.proto`).

pub(super) mod logs;
pub(super) mod metrics;

use std::time::Duration;

use prost::{Message, Oneof};

use crate::spans::{Span, SpanAttribute, SpanKind};

/// Semantic conventions of our attributes: those for generative AI have versions of their own.
const SCHEMA: &str = "https://opentelemetry.io/schemas/gen-ai/1.42.0";
/// Semantic conventions of the resource's attributes.
const RESOURCE_SCHEMA: &str = "https://opentelemetry.io/schemas/1.37.0";

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    /// Spans, points of metrics, or log records.
    #[prost(int64, tag = "1")]
    pub(super) rejected: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
    #[prost(string, tag = "3")]
    schema_url: String,
}

/// Source of the signals.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<WireSpan>,
    #[prost(string, tag = "3")]
    schema_url: String,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct WireSpan {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Flag(bool),
    #[prost(int64, tag = "3")]
    Number(i64),
    #[prost(double, tag = "4")]
    Fraction(f64),
}

const INTERNAL: i32 = 1;
const CLIENT: i32 = 3;
const ERROR: i32 = 2;
const SAMPLED: u32 = 1;

/// This process as a resource.
pub(super) fn resource(service_name: &str, instance: &str) -> Resource {
    let version = env!("CARGO_PKG_VERSION");
    let attributes = [
        ("service.name", service_name),
        ("service.version", version),
        ("service.instance.id", instance),
    ];
    let attributes = attributes.map(|(key, value)| key_value(key, Value::Text(value.to_owned())));
    Resource {
        attributes: attributes.to_vec(),
    }
}

/// An export request for `spans`.
pub(super) fn request(resource: &Resource, spans: &[Span]) -> ExportRequest {
    let spans = ScopeSpans {
        scope: Some(scope()),
        spans: spans.iter().map(span).collect(),
        schema_url: SCHEMA.to_owned(),
    };
    ExportRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource.clone()),
            scope_spans: vec![spans],
            schema_url: RESOURCE_SCHEMA.to_owned(),
        }],
    }
}

fn scope() -> Scope {
    Scope {
        name: "runnel".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// `since_1970` as in OTLP.
fn nanos(since_1970: Duration) -> u64 {
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}

fn span(span: &Span) -> WireSpan {
    let parent = span.parent.map(|parent| parent.bytes().to_vec());
    let error = span.error.clone().map(SpanAttribute::Text);
    let error = error.map(|error| ("error.type", error));
    let attributes = span.attributes.iter().cloned().chain(error);
    WireSpan {
        trace_id: span.trace_id.bytes().to_vec(),
        span_id: span.span_id.bytes().to_vec(),
        parent_span_id: parent.unwrap_or_default(),
        name: span.name.clone(),
        kind: match span.kind {
            SpanKind::Internal => INTERNAL,
            SpanKind::Client => CLIENT,
        },
        start_time_unix_nano: nanos(span.start),
        end_time_unix_nano: nanos(span.end),
        attributes: attributes
            .map(|(key, value)| key_value(key, of_attribute(value)))
            .collect(),
        status: span.error.as_ref().map(|_| Status { code: ERROR }),
        flags: SAMPLED,
    }
}

fn of_attribute(attribute: SpanAttribute) -> Value {
    match attribute {
        SpanAttribute::Text(text) => Value::Text(text),
        SpanAttribute::Number(number) => Value::Number(i64::try_from(number).unwrap_or(i64::MAX)),
        SpanAttribute::Seconds(seconds) => Value::Fraction(seconds),
        SpanAttribute::Flag(flag) => Value::Flag(flag),
    }
}

fn key_value(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use domain::trace::{RunTrace, SpanId};
    use opentelemetry_proto::tonic::collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    };
    use opentelemetry_proto::tonic::common::v1::any_value::Value as Told;
    use opentelemetry_proto::tonic::trace::v1::span::SpanKind as MetricKind;
    use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
    use protocol::id::RunId;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn official_decoder_reads_our_requests() {
        let trace = RunTrace::of(RunId(Uuid::now_v7()), None);
        let written = Span {
            trace_id: trace.trace_id,
            span_id: trace.span_id,
            parent: SpanId::new([7; 8]),
            kind: SpanKind::Client,
            name: "chat m".to_owned(),
            start: Duration::from_millis(1_795_291_200_123),
            end: Duration::from_millis(1_795_291_200_456),
            attributes: vec![
                ("a.text", SpanAttribute::Text("é".to_owned())),
                ("a.number", SpanAttribute::Number(u64::MAX)),
                ("a.flag", SpanAttribute::Flag(true)),
            ],
            error: Some("timeout".to_owned()),
        };
        let bytes = request(&resource("mine", "one"), &[written]).encode_to_vec();
        let read = ExportTraceServiceRequest::decode(bytes.as_slice()).unwrap();
        let [of_us] = &read.resource_spans[..] else {
            panic!("{read:?}")
        };
        let resource = of_us.resource.as_ref().unwrap();
        let names: Vec<_> = resource
            .attributes
            .iter()
            .map(|one| one.key.as_str())
            .collect();
        assert_eq!(
            names,
            ["service.name", "service.version", "service.instance.id"]
        );
        let scope = &of_us.scope_spans[0];
        assert_eq!(scope.scope.as_ref().unwrap().name, "runnel");
        let span = &scope.spans[0];
        assert_eq!(span.trace_id, trace.trace_id.bytes());
        assert_eq!(span.span_id, trace.span_id.bytes());
        assert_eq!(span.parent_span_id, [7; 8]);
        assert_eq!(
            (span.name.as_str(), span.kind()),
            ("chat m", MetricKind::Client)
        );
        assert_eq!(span.start_time_unix_nano, 1_795_291_200_123_000_000);
        assert_eq!(span.end_time_unix_nano, 1_795_291_200_456_000_000);
        assert_eq!(span.status.as_ref().unwrap().code(), StatusCode::Error);
        assert_eq!(span.flags, 1);
        let attributes = span.attributes.iter().map(|one| {
            let value = one.value.clone().and_then(|value| value.value);
            (one.key.as_str(), value.unwrap())
        });
        assert_eq!(
            attributes.collect::<Vec<_>>(),
            [
                ("a.text", Told::StringValue("é".to_owned())),
                ("a.number", Told::IntValue(i64::MAX)),
                ("a.flag", Told::BoolValue(true)),
                ("error.type", Told::StringValue("timeout".to_owned())),
            ]
        );
    }

    #[test]
    fn reads_rejected_span_counts() {
        let answer = ExportTraceServiceResponse {
            partial_success: Some(ExportTracePartialSuccess {
                rejected_spans: 3,
                error_message: "too old".to_owned(),
            }),
        };
        let read = ExportResponse::decode(answer.encode_to_vec().as_slice()).unwrap();
        assert_eq!(read.partial_success.unwrap().rejected, 3);
    }
}
