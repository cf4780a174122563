//! CPU time, memory and writes of a process, from the kernel's accounting.

use std::fs;
use std::time::Duration;

use anyhow::Context as _;

/// Unit of times in `/proc`: a hundredth of a second.
const TICK: Duration = Duration::from_millis(10);

/// User and system time of a process, over all its threads.
pub(crate) fn cpu(pid: u32) -> anyhow::Result<Duration> {
    // Fields 14 and 15 of the complete line.
    Ok(TICK * (stat_field(pid, 11)? + stat_field(pid, 12)?))
}

/// The parent of a process.
pub(crate) fn parent(pid: u32) -> anyhow::Result<u32> {
    stat_field(pid, 1)
}

/// A number in `/proc/PID/stat`, counted from the field after the name.
fn stat_field(pid: u32, field: usize) -> anyhow::Result<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The process name is in brackets and may hold any character.
    let (_, rest) = stat.rsplit_once(')').context("a line of /proc/PID/stat")?;
    let value = rest.split_whitespace().nth(field);
    Ok(value.context("a field of /proc/PID/stat")?.parse()?)
}

/// The children that a process with one thread has started and that still run.
pub(crate) fn children(pid: u32) -> anyhow::Result<Vec<u32>> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let children = children.split_whitespace().map(str::parse);
    Ok(children.collect::<Result<_, _>>()?)
}

/// Bytes that a process and its ended children caused to be written to a disk: those of pages that it made dirty.
pub(crate) fn written(pid: u32) -> anyhow::Result<u64> {
    let counters = fs::read_to_string(format!("/proc/{pid}/io"))
        .with_context(|| format!("/proc/{pid}/io is not readable: run as its owner or as root"))?;
    let bytes = counters
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(bytes.context("write_bytes")?.parse()?)
}

/// The resident memory of a process, in bytes.
pub(crate) fn resident(pid: u32) -> anyhow::Result<u64> {
    memory(pid, "VmRSS:")
}

/// The result of `work`, and the maximum resident memory of a process meanwhile, in bytes.
pub(crate) async fn peak_resident<T>(
    pid: u32,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<(T, u64)> {
    // Begins the measurement of the maximum again.
    fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
    let done = work.await?;
    Ok((done, memory(pid, "VmHWM:")?))
}

fn memory(pid: u32, name: &str) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().next())
        .with_context(|| name.to_owned())?
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
