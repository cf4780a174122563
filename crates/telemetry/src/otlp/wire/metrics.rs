//! The subset of `metrics/v1/metrics.proto` in use: cumulative histograms with explicit boundaries.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use prost::Message;

use super::{KeyValue, Resource, SCHEMA, Scope, Value, key_value, nanos, scope};
use crate::gen_ai::{Distribution, SeriesAttributes};

#[derive(Clone, PartialEq, Message)]
pub(in crate::otlp) struct MetricsRequest {
    #[prost(message, repeated, tag = "1")]
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<WireMetric>,
    #[prost(string, tag = "3")]
    schema_url: String,
}

#[derive(Clone, PartialEq, Message)]
struct WireMetric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    description: String,
    #[prost(string, tag = "3")]
    unit: String,
    #[prost(message, optional, tag = "9")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<HistogramPoint>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
}

#[derive(Clone, PartialEq, Message)]
struct HistogramPoint {
    #[prost(fixed64, tag = "2")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    count: u64,
    #[prost(double, optional, tag = "5")]
    sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    bucket_counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    explicit_bounds: Vec<f64>,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(double, optional, tag = "11")]
    min: Option<f64>,
    #[prost(double, optional, tag = "12")]
    max: Option<f64>,
}

const CUMULATIVE: i32 = 2;

/// An export request for these series. `period`: since 1970.
pub(in crate::otlp) fn request(
    resource: &Resource,
    period: &Range<Duration>,
    all: &[(SeriesAttributes, Distribution)],
) -> MetricsRequest {
    let mut by_name = BTreeMap::<_, WireMetric>::new();
    for (attributes, one) in all {
        let instrument = one.instrument;
        let metric = by_name
            .entry(instrument.name)
            .or_insert_with(|| WireMetric {
                name: instrument.name.to_owned(),
                description: instrument.description.to_owned(),
                unit: instrument.unit.to_owned(),
                histogram: Some(Histogram {
                    data_points: Vec::new(),
                    aggregation_temporality: CUMULATIVE,
                }),
            });
        if let Some(histogram) = &mut metric.histogram {
            histogram.data_points.push(point(period, attributes, one));
        }
    }
    let scope_metrics = ScopeMetrics {
        scope: Some(scope()),
        metrics: by_name.into_values().collect(),
        schema_url: SCHEMA.to_owned(),
    };
    MetricsRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource.clone()),
            scope_metrics: vec![scope_metrics],
        }],
    }
}

fn point(
    period: &Range<Duration>,
    attributes: &SeriesAttributes,
    one: &Distribution,
) -> HistogramPoint {
    let attributes = if attributes.is_empty() {
        // The specification's name for series beyond the limit.
        vec![key_value("otel.metric.overflow", Value::Flag(true))]
    } else {
        let attributes = attributes.iter();
        attributes
            .map(|(key, text)| key_value(key, Value::Text(text.clone())))
            .collect()
    };
    HistogramPoint {
        start_time_unix_nano: nanos(period.start),
        time_unix_nano: nanos(period.end),
        count: one.buckets.iter().sum(),
        sum: Some(one.sum),
        bucket_counts: one.buckets.clone(),
        explicit_bounds: one.instrument.bounds.to_vec(),
        attributes,
        min: Some(one.min),
        max: Some(one.max),
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
    use opentelemetry_proto::tonic::metrics::v1::AggregationTemporality;
    use opentelemetry_proto::tonic::metrics::v1::metric::Data;

    use super::*;
    use crate::gen_ai::{Instrument, TOKEN_USAGE};
    use crate::otlp::wire::resource;

    #[test]
    fn official_decoder_reads_our_histograms() {
        let instrument: &Instrument = &TOKEN_USAGE;
        let one = Distribution {
            instrument,
            sum: 12.5,
            min: 2.5,
            max: 10.0,
            buckets: vec![0, 1, 1],
        };
        let all = [
            (vec![("gen_ai.token.type", "input".to_owned())], one.clone()),
            (Vec::new(), one),
        ];
        let period = Duration::from_secs(1)..Duration::from_secs(61);
        let bytes = request(&resource("mine", "one"), &period, &all).encode_to_vec();
        let read = ExportMetricsServiceRequest::decode(bytes.as_slice()).unwrap();
        let scope = &read.resource_metrics[0].scope_metrics[0];
        let [metric] = &scope.metrics[..] else {
            panic!("{scope:?}")
        };
        assert_eq!(
            (metric.name.as_str(), metric.unit.as_str()),
            (instrument.name, "{token}")
        );
        let Some(Data::Histogram(histogram)) = &metric.data else {
            panic!("{metric:?}")
        };
        let [point, shared] = &histogram.data_points[..] else {
            panic!("{histogram:?}")
        };
        assert_eq!(
            histogram.aggregation_temporality(),
            AggregationTemporality::Cumulative
        );
        assert_eq!(
            (point.count, point.sum, point.min, point.max),
            (2, Some(12.5), Some(2.5), Some(10.0))
        );
        assert_eq!(point.explicit_bounds, instrument.bounds);
        assert_eq!(
            point.time_unix_nano - point.start_time_unix_nano,
            60_000_000_000
        );
        assert_eq!(point.attributes[0].key, "gen_ai.token.type");
        assert_eq!(shared.attributes[0].key, "otel.metric.overflow");
    }
}
