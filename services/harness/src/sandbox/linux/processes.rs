//! Seccomp rules for system calls that act on other processes, which Landlock does not cover: resource limits,
//! priorities, scheduling and memory of processes of the same user, and keys that processes of a user share.
//!
//! A filter cannot know the id of the calling process. Programs refer to themselves by 0 in these calls; every other id
//! is denied, including their own.

use std::collections::BTreeMap;

use seccompiler::{BackendError, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

use super::sockets::SyscallRules;

/// `IOPRIO_WHO_PROCESS` of `linux/ioprio.h`.
const IOPRIO_PROCESS: u64 = 1;

/// Calls with a process id, and the position of that argument. Values other than 0 are denied.
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

/// Calls whose first argument is a kind of id, and the kind for a process. Groups and users are denied.
const BY_KIND: [(i64, u64); 2] = [
    (libc::SYS_setpriority, libc::PRIO_PROCESS as u64),
    (libc::SYS_ioprio_set, IOPRIO_PROCESS),
];

/// Calls that access another process by a descriptor or an address space. Always denied.
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

/// Rules against calls that act on another process.
pub(super) fn other_process_rules() -> Result<SyscallRules, BackendError> {
    let mut rules: SyscallRules = BTreeMap::new();
    let differs = |argument: u8, value: u64| {
        // The kernel reads 32 bits of these arguments; a 64-bit comparison could be bypassed by the upper half.
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

/// Rules against keyrings, which all processes of a user share. Programs fall back to files.
pub(super) fn key_rules() -> SyscallRules {
    let calls = [libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl];
    calls.map(|call| (call, Vec::new())).into()
}
