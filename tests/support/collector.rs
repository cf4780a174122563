//! An OTLP collector that accepts spans or simulates an outage.

use std::io::Read as _;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use flate2::read::GzDecoder;
use http::{HeaderMap, StatusCode, Uri};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Told;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message as _;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{hex, serve, within};

/// Response of the collector to exports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CollectorMode {
    Takes,
    /// Answers with an error, as if its backend were down.
    Refuses,
    /// Never answers.
    Hangs,
}

/// A received span.
#[derive(Clone, Debug)]
pub struct ReceivedSpan {
    pub name: String,
    pub trace_id: String,
    pub span_id: String,
    /// Empty for a root span.
    pub parent_id: String,
    pub is_client: bool,
    pub is_error: bool,
    /// Nanoseconds.
    pub start: u64,
    pub end: u64,
    pub attributes: Value,
    /// Resource attributes of the exporting process.
    pub resource: Value,
}

/// A received series of a histogram.
#[derive(Clone, Debug)]
pub struct ReceivedSeries {
    pub metric: String,
    pub attributes: Value,
    pub count: u64,
    pub sum: f64,
}

struct CollectorState {
    manner: Mutex<CollectorMode>,
    spans: watch::Sender<Vec<ReceivedSpan>>,
    /// Those of the last export, because each has all counts.
    series: watch::Sender<Vec<ReceivedSeries>>,
    /// Log records as JSON: attributes, and with them `severity` and `message`.
    records: watch::Sender<Vec<Value>>,
    /// All export requests, accepted or refused.
    requests: watch::Sender<Vec<(HeaderMap, Bytes)>>,
}

/// Stops the server on drop.
pub struct Collector {
    pub url: String,
    shared: Arc<CollectorState>,
    _server: JoinSet<()>,
}

impl Collector {
    pub async fn start() -> Self {
        let shared = Arc::new(CollectorState {
            manner: Mutex::new(CollectorMode::Takes),
            spans: watch::Sender::default(),
            series: watch::Sender::default(),
            records: watch::Sender::default(),
            requests: watch::Sender::default(),
        });
        let router = Router::new().fallback(take).with_state(Arc::clone(&shared));
        let (url, server) = serve(router).await;
        Self {
            url,
            shared,
            _server: server,
        }
    }

    pub fn behave(&self, manner: CollectorMode) {
        *self.shared.manner.lock().unwrap() = manner;
    }

    /// All spans received so far.
    pub fn spans(&self) -> Vec<ReceivedSpan> {
        self.shared.spans.borrow().clone()
    }

    /// Waits for the first span that matches `is`.
    pub async fn wait_for_match(
        &self,
        what: &str,
        is: impl Fn(&ReceivedSpan) -> bool,
    ) -> ReceivedSpan {
        let mut spans = self.shared.spans.subscribe();
        let found = within(what, spans.wait_for(|all| all.iter().any(&is))).await;
        found.unwrap().iter().find(|one| is(one)).unwrap().clone()
    }

    /// Series of the last export of metrics.
    pub fn series(&self) -> Vec<ReceivedSeries> {
        self.shared.series.borrow().clone()
    }

    /// Waits for the first log record that matches `is`.
    pub async fn wait_for_record(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let mut records = self.shared.records.subscribe();
        let found = within(what, records.wait_for(|all| all.iter().any(&is))).await;
        found.unwrap().iter().find(|one| is(one)).unwrap().clone()
    }

    /// Waits until `count` export requests have arrived.
    pub async fn wait_for_exports(&self, count: usize) {
        let mut requests = self.shared.requests.subscribe();
        let waiting = requests.wait_for(|all| all.len() >= count);
        within("requests to the collector", waiting).await.unwrap();
    }

    /// Headers and bytes of all requests received so far.
    pub fn requests(&self) -> Vec<(HeaderMap, Bytes)> {
        self.shared.requests.borrow().clone()
    }
}

/// The `[telemetry]` section of a gateway that exports to the collector at `url`.
pub fn telemetry_section(url: &str, more: &str) -> String {
    format!("[telemetry]\notlp_endpoint = \"{url}\"\n{more}\n")
}

async fn take(
    State(shared): State<Arc<CollectorState>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let body = unpacked(&headers, body);
    let all = |all: &mut Vec<_>| all.push((headers, body.clone()));
    shared.requests.send_modify(all);
    let manner = *shared.manner.lock().unwrap();
    match manner {
        CollectorMode::Refuses => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
        CollectorMode::Hangs => std::future::pending().await,
        CollectorMode::Takes => {}
    }
    match uri.path() {
        "/v1/traces" => {
            let request = ExportTraceServiceRequest::decode(body).unwrap();
            shared.spans.send_modify(|all| all.extend(spans(&request)));
        }
        "/v1/metrics" => {
            let request = ExportMetricsServiceRequest::decode(body).unwrap();
            shared.series.send_replace(series(&request));
        }
        "/v1/logs" => {
            let request = ExportLogsServiceRequest::decode(body).unwrap();
            shared
                .records
                .send_modify(|all| all.extend(records(&request)));
        }
        other => panic!("no signal has the path {other}"),
    }
    StatusCode::OK.into_response()
}

fn spans(request: &ExportTraceServiceRequest) -> Vec<ReceivedSpan> {
    let mut received = Vec::new();
    for of_process in &request.resource_spans {
        let resource = of_process.resource.as_ref();
        let resource = values(resource.map_or(&[][..], |one| &one.attributes[..]));
        let spans = of_process.scope_spans.iter().flat_map(|scope| &scope.spans);
        received.extend(spans.map(|span| seen(span, &resource)));
    }
    received
}

fn records(request: &ExportLogsServiceRequest) -> impl Iterator<Item = Value> {
    let scopes = request.resource_logs.iter();
    let scopes = scopes.flat_map(|of_process| &of_process.scope_logs);
    let records = scopes.flat_map(|scope| &scope.log_records);
    records.map(|record| {
        let mut received = values(&record.attributes);
        received["severity"] = json!(record.severity_text);
        let body = record.body.clone().and_then(|body| body.value);
        if let Some(Told::StringValue(text)) = body {
            received["message"] = json!(text);
        }
        received
    })
}

/// The body without its compression.
fn unpacked(headers: &HeaderMap, body: Bytes) -> Bytes {
    match headers.get("content-encoding") {
        None => body,
        Some(encoding) => {
            assert_eq!(encoding, "gzip");
            let mut unpacked = Vec::new();
            let mut decoder = GzDecoder::new(&body[..]);
            decoder.read_to_end(&mut unpacked).unwrap();
            unpacked.into()
        }
    }
}

fn series(request: &ExportMetricsServiceRequest) -> Vec<ReceivedSeries> {
    let scopes = request.resource_metrics.iter();
    let scopes = scopes.flat_map(|of_process| &of_process.scope_metrics);
    let mut found = Vec::new();
    for metric in scopes.flat_map(|scope| &scope.metrics) {
        let Some(Data::Histogram(histogram)) = &metric.data else {
            panic!("{metric:?}")
        };
        found.extend(histogram.data_points.iter().map(|point| {
            assert!(
                point.start_time_unix_nano < point.time_unix_nano,
                "{point:?}"
            );
            assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
            assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count);
            ReceivedSeries {
                metric: metric.name.clone(),
                attributes: values(&point.attributes),
                count: point.count,
                sum: point.sum.unwrap(),
            }
        }));
    }
    found
}

fn seen(span: &Span, resource: &Value) -> ReceivedSpan {
    ReceivedSpan {
        name: span.name.clone(),
        trace_id: hex(&span.trace_id),
        span_id: hex(&span.span_id),
        parent_id: hex(&span.parent_span_id),
        is_client: span.kind() == SpanKind::Client,
        is_error: span.status.as_ref().is_some_and(|status| status.code == 2),
        start: span.start_time_unix_nano,
        end: span.end_time_unix_nano,
        attributes: values(&span.attributes),
        resource: resource.clone(),
    }
}

fn values(attributes: &[KeyValue]) -> Value {
    let one = |attribute: &KeyValue| {
        let received = attribute.value.clone().and_then(|value| value.value);
        let value = match received.unwrap() {
            Told::StringValue(text) => json!(text),
            Told::IntValue(number) => json!(number),
            Told::BoolValue(flag) => json!(flag),
            Told::DoubleValue(number) => json!(number),
            other => panic!("{other:?}"),
        };
        (attribute.key.clone(), value)
    };
    Value::Object(attributes.iter().map(one).collect::<Map<_, _>>())
}
