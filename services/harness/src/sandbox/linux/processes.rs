//! A seccomp filter for calls that act on other processes, which Landlock does not see: resource limits, priorities,
//! scheduling and memory of a process of the same user, and keys that processes of a user share.
//!
//! The filter cannot know the id of the calling process. Programs name themselves by 0 in these calls; an id is refused,
//! also their own.

use std::collections::BTreeMap;

use seccompiler::{BackendError, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

use super::sockets::SyscallRules;

/// `IOPRIO_WHO_PROCESS` of `linux/ioprio.h`.
const IOPRIO_PROCESS: u64 = 1;

/// Calls with the process id as an argument, by its position. Anything but 0 is refused.
const BY_PROCESS: [(i64, u8); 9] = [
    (libc::SYS_prlimit64, 0),
    (libc::SYS_sched_setaffinity, 0),
    (libc::SYS_sched_setattr, 0),
    (libc::SYS_sched_setparam, 0),
    (libc::SYS_sched_setscheduler, 0),
    (libc::SYS_migrate_pages, 0),
    (libc::SYS_move_pages, 0),
    (libc::SYS_setpriority, 1),
    (libc::SYS_ioprio_set, 1),
];

/// Calls with a kind of id, of which only this one is a process.
const BY_KIND: [(i64, u64); 2] = [
    (libc::SYS_setpriority, libc::PRIO_PROCESS as u64),
    (libc::SYS_ioprio_set, IOPRIO_PROCESS),
];

/// Calls that read or change another process by a descriptor or an address space.
const ALWAYS: [i64; 8] = [
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_perf_event_open,
    libc::SYS_bpf,
];

/// Calls that act on another process.
pub(super) fn other_process_rules() -> Result<SyscallRules, BackendError> {
    let mut rules: SyscallRules = BTreeMap::new();
    let differs = |argument: u8, value: u64| {
        let length = SeccompCmpArgLen::Dword;
        let condition = SeccompCondition::new(argument, length, SeccompCmpOp::Ne, value)?;
        SeccompRule::new(vec![condition])
    };
    for (call, argument) in BY_PROCESS {
        rules.entry(call).or_default().push(differs(argument, 0)?);
    }
    for (call, kind) in BY_KIND {
        rules.entry(call).or_default().push(differs(0, kind)?);
    }
    rules.extend(ALWAYS.map(|call| (call, Vec::new())));
    Ok(rules)
}

/// Keyrings. A user's keyring is shared by all processes of the user; programs fall back to files.
pub(super) fn key_rules() -> SyscallRules {
    let calls = [libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl];
    calls.map(|call| (call, Vec::new())).into()
}
