//! Receivers of exports, including their secrets: the collector, and the receiver of administrative changes.

use crate::change_export::ChangeReceiver;
use crate::config::{ChangeExportEntry, Config, ConfigFault};
use egress::Egress;
use telemetry::otlp::Collector;

/// `None`: nothing is exported, or the cause is in `faults`.
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
        metrics_interval: telemetry.metrics_interval,
        log_level: telemetry.log_level,
    })
}

/// `None`: nothing is exported.
pub(super) fn change_receiver(
    config: &Config,
    egress: Option<&Egress>,
    faults: &mut Vec<ConfigFault>,
) -> Option<Box<ChangeReceiver>> {
    Some(Box::new(match config.audit_export.clone()? {
        ChangeExportEntry::File(path) => ChangeReceiver::File(path),
        ChangeExportEntry::Http { url, headers } => {
            super::check_egress(egress, &url, "audit.export.url", faults);
            let headers = super::secrets::headers(&headers, "audit.export", faults);
            ChangeReceiver::Http { url, headers }
        }
    }))
}
