//! File descriptor limit and its share for connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Reserve for files other than connections, such as database and log.
const RESERVED_FILES: u64 = 64;

/// Number of connections unless the configuration sets one.
const DEFAULT_CONNECTIONS: usize = 10_000;

/// Raises the limit of open files to its maximum. Returns the configured number of connections or the default, or
/// fewer so that runner connections get as many. A configured number that is too large is logged.
pub fn affordable_connections(configured: Option<usize>) -> usize {
    let wanted = configured.unwrap_or(DEFAULT_CONNECTIONS);
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        // A sandbox may forbid the change.
        Err(_) => limit.current,
    };
    let affordable = share(wanted, current);
    if configured.is_some() && affordable < wanted {
        tracing::warn!(
            files = current,
            connections = affordable,
            "{affordable} connections are served at once, not server.connections = {wanted}: the process may not open more \
             files (ulimit -n)"
        );
    }
    affordable
}

/// `None`: no file limit.
fn share(wanted: usize, files: Option<u64>) -> usize {
    let Some(files) = files else { return wanted };
    // A connection may cause one to a runner, so each counts twice.
    let half = usize::try_from(files.saturating_sub(RESERVED_FILES) / 2).unwrap_or(usize::MAX);
    wanted.min(half.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserves_half_of_files_for_runs() {
        assert_eq!(share(10_000, None), 10_000);
        assert_eq!(share(10_000, Some(1_048_576)), 10_000);
        assert_eq!(share(10_000, Some(1024)), 480);
        assert_eq!(share(100, Some(1024)), 100);
        assert_eq!(share(100, Some(10)), 1);
    }
}
