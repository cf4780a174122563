//! The trace collector, including its secrets.

use crate::config::{Config, ConfigFault};
use egress::Egress;
use telemetry::otlp::Collector;

/// `None`: tracing is off, or the cause is in `faults`.
pub(super) fn collector(
    config: &Config,
    egress: Option<&Egress>,
    faults: &mut Vec<ConfigFault>,
) -> Option<Collector> {
    let telemetry = &config.telemetry;
    let endpoint = telemetry.otlp_endpoint.clone()?;
    super::check_egress(egress, &endpoint, "telemetry.otlp_endpoint", faults);
    Some(Collector {
        endpoint,
        headers: super::secrets::headers(&telemetry.headers, "telemetry", faults),
        sample_ratio: telemetry.sample_ratio,
        service_name: telemetry.service_name.clone(),
    })
}
