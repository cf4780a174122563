//! Seccomp filters. The filters of this file close bypasses of Landlock's TCP rules, which cover only `connect` and
//! `bind` of plain TCP sockets:
//!
//! * Multipath TCP sockets connect to any TCP server (landlock-lsm/linux#54); other families reach the host (VSOCK).
//! * `MSG_FASTOPEN` connects while it sends (landlock-lsm/linux#41).
//! * `io_uring` creates sockets without the system call that the filter checks.
//!
//! Programs of another architecture (32-bit on 64-bit) are killed: their system calls have other numbers.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter,
};

use super::processes;

/// System calls, each with the rules that match it; any match is denied, and so is a call without rules.
pub(super) type SyscallRules = BTreeMap<i64, Vec<SeccompRule>>;

/// Restricts the calling thread and the programs that it executes. Sets `no_new_privs`.
pub(super) fn restrict() -> Result<(), seccompiler::Error> {
    // Programs interpret these errors as missing kernel support, and fall back.
    let filters = [
        (socket_rules()?, libc::EPROTONOSUPPORT),
        (fast_open_rules()?, libc::EOPNOTSUPP),
        (io_uring_rules(), libc::ENOSYS),
        (processes::other_process_rules()?, libc::EPERM),
        (processes::key_rules(), libc::ENOSYS),
    ];
    for (rules, errno) in filters {
        let filter = SeccompFilter::new(
            on_every_table(rules),
            SeccompAction::Allow,
            SeccompAction::Errno(errno.unsigned_abs()),
            std::env::consts::ARCH.try_into()?,
        )?;
        apply_filter(&BpfProgram::try_from(filter)?)?;
    }
    Ok(())
}

/// Denies `socket` except for Unix, plain TCP, UDP, and the kernel's table of addresses and routes.
fn socket_rules() -> Result<SyscallRules, BackendError> {
    let families = [
        libc::AF_UNIX,
        libc::AF_INET,
        libc::AF_INET6,
        libc::AF_NETLINK,
    ];
    let internet = [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP];
    let rules = vec![
        SeccompRule::new(none_of(0, &families)?)?,
        SeccompRule::new(family_beyond(libc::AF_INET, &internet)?)?,
        SeccompRule::new(family_beyond(libc::AF_INET6, &internet)?)?,
        SeccompRule::new(family_beyond(libc::AF_NETLINK, &[libc::NETLINK_ROUTE])?)?,
    ];
    Ok(SyscallRules::from([(libc::SYS_socket, rules)]))
}

/// Conditions that match a family with any other protocol than these.
fn family_beyond(family: i32, protocols: &[i32]) -> Result<Vec<SeccompCondition>, BackendError> {
    let mut conditions = vec![condition(0, SeccompCmpOp::Eq, family)?];
    conditions.extend(none_of(2, protocols)?);
    Ok(conditions)
}

fn none_of(argument: u8, values: &[i32]) -> Result<Vec<SeccompCondition>, BackendError> {
    let differs = |value: &i32| condition(argument, SeccompCmpOp::Ne, *value);
    values.iter().map(differs).collect()
}

/// Condition on a 32-bit argument: the kernel ignores the upper half.
fn condition(
    argument: u8,
    operator: SeccompCmpOp,
    value: i32,
) -> Result<SeccompCondition, BackendError> {
    let value = u64::from(value.unsigned_abs());
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

/// Denies `MSG_FASTOPEN` in the calls that accept it.
fn fast_open_rules() -> Result<SyscallRules, BackendError> {
    let flag = u64::from(libc::MSG_FASTOPEN.unsigned_abs());
    // System call, and position of its flags argument.
    let calls = [
        (libc::SYS_sendto, 3),
        (libc::SYS_sendmsg, 2),
        (libc::SYS_sendmmsg, 3),
    ];
    let rule = |(call, argument)| {
        let operator = SeccompCmpOp::MaskedEq(flag);
        let has_flag = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, flag)?;
        Ok((call, vec![SeccompRule::new(vec![has_flag])?]))
    };
    calls.into_iter().map(rule).collect()
}

/// Denies `io_uring`. Runtimes fall back to epoll.
fn io_uring_rules() -> SyscallRules {
    SyscallRules::from([(libc::SYS_io_uring_setup, Vec::new())])
}

/// Adds the same rules for x32 system call numbers, which some x86-64 kernels accept.
#[cfg(target_arch = "x86_64")]
fn on_every_table(rules: SyscallRules) -> SyscallRules {
    const X32: i64 = 0x4000_0000;
    // Most x32 numbers add this bit; these two have numbers of their own.
    let number = |call| match call {
        libc::SYS_sendmsg => X32 + 518,
        libc::SYS_sendmmsg => X32 + 538,
        call => X32 + call,
    };
    let twins: SyscallRules = rules
        .iter()
        .map(|(call, rule)| (number(*call), rule.clone()))
        .collect();
    rules.into_iter().chain(twins).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn on_every_table(rules: SyscallRules) -> SyscallRules {
    rules
}
