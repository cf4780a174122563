//! Log records for a collector: the events that stderr has, from a level on.

use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use clock::Clock;
use serde_json::{Map, Value};
use tokio::sync::mpsc::{self, error::TrySendError};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::event_fields::EventFields;
use crate::metrics::log_records_exported;
use crate::spans::Exported;

/// Maximum number of records that wait for their export.
const QUEUED: usize = 2048;

/// The log begins before there is a configuration, so its layer looks for the exporter here.
static QUEUE: RwLock<Option<LogQueue>> = RwLock::new(None);

struct LogQueue {
    queue: mpsc::Sender<LogRecord>,
    level: Level,
    clock: Clock,
}

/// An event of the log.
#[derive(Clone, Debug)]
pub(crate) struct LogRecord {
    /// Since 1970.
    pub(crate) at: Duration,
    pub(crate) level: Level,
    pub(crate) target: &'static str,
    pub(crate) message: String,
    pub(crate) fields: Map<String, Value>,
}

/// Queues later events of `level` and above for the export.
pub(crate) fn begin(level: Level, clock: Clock) -> mpsc::Receiver<LogRecord> {
    let (queue, records) = mpsc::channel(QUEUED);
    let exporting = LogQueue {
        queue,
        level,
        clock,
    };
    *QUEUE.write().unwrap_or_else(PoisonError::into_inner) = Some(exporting);
    records
}

/// Queues events for the export. A full queue drops them.
pub(crate) struct LogRecords;

impl<S: Subscriber> Layer<S> for LogRecords {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let queue = QUEUE.read().unwrap_or_else(PoisonError::into_inner);
        let metadata = event.metadata();
        // Levels order by verbosity.
        let Some(exporting) = queue.as_ref().filter(|one| *metadata.level() <= one.level) else {
            return;
        };
        let mut fields = EventFields::default();
        event.record(&mut fields);
        let message = match fields.0.remove("message") {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
        let record = LogRecord {
            at: exporting.clock.since_epoch(),
            level: *metadata.level(),
            target: metadata.target(),
            message,
            fields: fields.0,
        };
        if let Err(TrySendError::Full(_)) = exporting.queue.try_send(record) {
            log_records_exported(Exported::Dropped, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn queues_events_from_a_level_on() {
        let mut records = begin(Level::WARN, Clock::system());
        let subscriber = tracing_subscriber::registry().with(LogRecords);
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("too detailed");
            tracing::warn!(run.id = %7, "it {}", "broke");
        });
        let record = records.try_recv().unwrap();
        assert_eq!(
            (record.message.as_str(), record.level),
            ("it broke", Level::WARN)
        );
        assert_eq!(record.fields["run.id"], "7");
        assert!(records.try_recv().is_err());
    }
}
