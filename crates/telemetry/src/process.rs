//! Process metrics under the common Prometheus names, read from `/proc`. Without `/proc` there are none.

use std::fmt::Write as _;
use std::fs;

/// Clock ticks per second of Linux, on all supported architectures.
const TICKS_PER_SECOND: f64 = 100.0;

/// Samples in the Prometheus text format.
pub fn render() -> String {
    let mut text = String::new();
    let status = read("status");
    let stat = read("stat");
    let memory = field(&status, "VmRSS:").map(|kib| kib * 1024.0);
    gauge(&mut text, "process_resident_memory_bytes", memory);
    gauge(&mut text, "process_threads", field(&status, "Threads:"));
    gauge(&mut text, "process_open_fds", open_descriptors());
    let limit = field(&read("limits"), "Max open files");
    gauge(&mut text, "process_max_fds", limit);
    let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
    let started = stat_field(&stat, 22).zip(field(&boot, "btime"));
    let started = started.map(|(ticks, boot)| boot + ticks / TICKS_PER_SECOND);
    gauge(&mut text, "process_start_time_seconds", started);
    let ticks = stat_field(&stat, 14).zip(stat_field(&stat, 15));
    let seconds = ticks.map(|(user, system)| (user + system) / TICKS_PER_SECOND);
    sample(&mut text, "process_cpu_seconds_total", "counter", seconds);
    text
}

fn read(name: &str) -> String {
    fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default()
}

/// The first number of the line that begins with `name`.
fn field(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Field `n` of `/proc/self/stat`, counted from 1. The second field is the name, which may contain blanks.
fn stat_field(stat: &str, n: usize) -> Option<f64> {
    // The name may contain `)` itself, so search from the right.
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(n - 3)?.parse().ok()
}

#[expect(clippy::cast_precision_loss, reason = "bounded far below 2^52")]
fn open_descriptors() -> Option<f64> {
    // Without the descriptor of the directory itself.
    let count = fs::read_dir("/proc/self/fd").ok()?.count();
    Some(count.saturating_sub(1) as f64)
}

fn gauge(text: &mut String, name: &str, value: Option<f64>) {
    sample(text, name, "gauge", value);
}

fn sample(text: &mut String, name: &str, kind: &str, value: Option<f64>) {
    let Some(value) = value else { return };
    let metric = super::metrics::METRICS.iter().find(|one| one.name == name);
    let help = metric.map_or("", |metric| metric.help);
    // Writing to a `String` cannot fail.
    let _ = writeln!(
        text,
        "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_stat_fields_after_arbitrary_names() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 0 1 2 3 4 150 50 0 0 20 0 9 0 4242 1 2";
        let fields = [14, 15, 22].map(|n| stat_field(stat, n));
        assert_eq!(fields, [Some(150.0), Some(50.0), Some(4242.0)]);
        assert_eq!(stat_field("", 14), None);
        let limits = "Limit  Soft Limit\nMax open files            1024                 4096\n";
        assert_eq!(field(limits, "Max open files"), Some(1024.0));
        assert_eq!(field(limits, "VmRSS:"), None);
    }

    #[test]
    fn reports_memory_threads_and_descriptors() {
        if cfg!(not(target_os = "linux")) {
            return;
        }
        let text = render();
        for name in [
            "process_resident_memory_bytes",
            "process_open_fds",
            "process_max_fds",
            "process_threads",
            "process_cpu_seconds_total",
            "process_start_time_seconds",
        ] {
            let value = field(&text, name);
            assert!(value.is_some_and(|value| value >= 0.0), "{name}: {text}");
        }
        assert!(field(&text, "process_resident_memory_bytes") > Some(1e6));
    }
}
