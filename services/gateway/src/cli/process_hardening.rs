//! Process hardening.

/// Denies other processes of this user access to memory and environment. Otherwise a child process of a tool
/// could read secrets in `/proc`. Also disables core dumps. Root is not affected.
pub(super) fn harden() {
    #[cfg(target_os = "linux")]
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        // The gateway works without the protection, so it starts all the same.
        tracing::warn!(
            %error,
            "other processes of this user may read the environment of this one, its secrets included"
        );
    }
}

#[cfg(target_os = "linux")]
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::process::dumpable_behavior;

    use super::*;

    #[test]
    fn hardened_process_still_reads_its_own_metrics() {
        harden();
        let found = dumpable_behavior().unwrap();
        assert!(matches!(found, DumpableBehavior::NotDumpable), "{found:?}");
        assert!(std::env::current_exe().is_ok());
        assert!(std::fs::read_dir("/proc/self/fd").is_ok());
        assert!(std::fs::read_to_string("/proc/self/stat").is_ok());
    }
}
