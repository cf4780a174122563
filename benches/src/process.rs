//! CPU time and memory of a process, from the kernel's accounting.

use std::fs;
use std::time::Duration;

use anyhow::Context as _;

/// Unit of times in `/proc`: a hundredth of a second.
const TICK: Duration = Duration::from_millis(10);

/// User and system time of a process, over all its threads.
pub(crate) fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The process name is in brackets and may hold any character.
    let (_, rest) = stat.rsplit_once(')').context("a line of /proc/PID/stat")?;
    let fields: Vec<_> = rest.split_whitespace().collect();
    let ticks =
        |field: usize| -> anyhow::Result<u32> { Ok(fields.get(field).context("times")?.parse()?) };
    // Fields 14 and 15 of the complete line.
    Ok(TICK * (ticks(11)? + ticks(12)?))
}

/// The resident memory of a process, in bytes.
pub(crate) fn resident(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().next())
        .context("VmRSS")?
        .parse()?;
    Ok(kib * 1024)
}

/// The machine that the figures depend on: processor, cores, kernel.
pub(crate) fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{cores} cores of {}, Linux {}",
        model.map_or("an unknown processor", |(_, model)| model.trim()),
        kernel.trim()
    )
}
