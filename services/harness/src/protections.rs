//! Protections of the sandbox on this machine, as the table of `docs/security-harness.md`.

use serde_json::{Value, json};

use crate::sandbox::{self, Support};
use crate::settings::{HarnessFile, SandboxMode};

/// Row of the table.
struct Protection {
    /// Objects closed to a harness.
    reach: &'static str,
    mechanism: &'static str,
    /// Effect of a missing mechanism; empty if it is never missing.
    without: &'static str,
    need: Need,
}

/// Condition of a protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Holds everywhere, also with `sandbox = "off"`.
    Always,
    Privileges,
    Files,
    Tcp,
    Scopes,
    Filters,
    Namespaces,
    User,
    Processes,
    Cgroup,
    /// No mechanism of the service holds it.
    Never,
}

const TABLE: [Protection; 18] = [
    Protection {
        reach: "contents of files outside its directories",
        mechanism: "Landlock ABI 1",
        without: "it reads and writes the files of its user",
        need: Need::Files,
    },
    Protection {
        reach: "names, modes, owners and times of files outside its directories; Unix sockets with a path",
        mechanism: "mount namespace",
        without: "it changes modes and times of its user's files, and connects to sockets that admit its user",
        need: Need::Namespaces,
    },
    Protection {
        reach: "TCP ports that are not listed",
        mechanism: "Landlock ABI 4, seccomp",
        without: "it connects to each address and binds each port",
        need: Need::Tcp,
    },
    Protection {
        reach: "signals to outside processes; abstract Unix sockets",
        mechanism: "Landlock ABI 6",
        without: "it signals processes of its user, unless the process namespace hides them",
        need: Need::Scopes,
    },
    Protection {
        reach: "limits, priority, scheduling and memory of other processes",
        mechanism: "seccomp",
        without: "it changes those of its user's processes",
        need: Need::Filters,
    },
    Protection {
        reach: "keyrings",
        mechanism: "seccomp",
        without: "it reads the keys of its user",
        need: Need::Filters,
    },
    Protection {
        reach: "names and arguments of outside processes",
        mechanism: "process namespace",
        without: "it reads the command lines of all processes; Landlock still closes their environment",
        need: Need::Namespaces,
    },
    Protection {
        reach: "processes after the run",
        mechanism: "process namespace",
        without: "the supervisor kills all descendants in rounds; a process that forks without pause may escape",
        need: Need::Namespaces,
    },
    Protection {
        reach: "terminals of other processes",
        mechanism: "mount namespace",
        without: "it opens terminals of its user and reads what is typed there",
        need: Need::Namespaces,
    },
    Protection {
        reach: "System V shared memory, semaphores and message queues",
        mechanism: "IPC namespace",
        without: "it shares those of its user",
        need: Need::Namespaces,
    },
    Protection {
        reach: "files and processes of the service's user",
        mechanism: "user",
        without: "it runs as the user of the service; the rows above bound it",
        need: Need::User,
    },
    Protection {
        reach: "capabilities, set-user-id programs",
        mechanism: "capabilities, no_new_privs",
        without: "it may gain the rights of set-user-id programs",
        need: Need::Privileges,
    },
    Protection {
        reach: "environment and descriptors of the service",
        mechanism: "exec",
        without: "",
        need: Need::Always,
    },
    Protection {
        reach: "core dumps with the run token",
        mechanism: "resource limits",
        without: "",
        need: Need::Always,
    },
    Protection {
        reach: "memory of a process, size of a file, processor time beyond the limits",
        mechanism: "resource limits",
        without: "",
        need: Need::Always,
    },
    Protection {
        reach: "number of processes beyond the limit",
        mechanism: "user, resource limits",
        without: "root has no limit of processes",
        need: Need::Processes,
    },
    Protection {
        reach: "memory and processes of all runs beyond a limit",
        mechanism: "cgroup",
        without: "only the limits of each process bound them: set MemoryMax and TasksMax, or --memory and --pids-limit",
        need: Need::Cgroup,
    },
    Protection {
        reach: "UDP; other hosts with a listed TCP port; a full disk",
        mechanism: "none",
        without: "use a firewall rule for its user or a container network, and a quota",
        need: Need::Never,
    },
];

/// Protections that hold for the harnesses of a service.
#[derive(Debug, Clone)]
pub struct Protections {
    support: Support,
    is_off: bool,
    held: Vec<Need>,
}

impl Protections {
    /// Examines the machine for a service with these settings, or with the defaults. Starts processes of this program,
    /// which has to call [`crate::own_process::run`].
    pub fn examine(settings: Option<&HarnessFile>) -> Self {
        let is_off = settings.is_some_and(|settings| settings.sandbox == SandboxMode::Off);
        let account =
            settings.and_then(|settings| sandbox::account(settings.user.as_deref()).ok()?);
        let support = sandbox::support();
        // Linux exempts root from the limit of processes.
        let has_limit = account.is_some() || !rustix::process::geteuid().is_root();
        let needs = [
            (Need::Always, true),
            (Need::Privileges, !is_off),
            (Need::Files, !is_off && support.filesystem),
            (Need::Tcp, !is_off && support.network),
            (Need::Scopes, !is_off && support.scopes),
            (Need::Filters, !is_off && support.filters),
            (Need::Namespaces, !is_off && sandbox::has_namespaces()),
            (Need::User, account.is_some()),
            (Need::Processes, has_limit),
            (Need::Cgroup, cgroup::is_limited()),
        ];
        let held = needs.into_iter().filter(|(_, holds)| *holds);
        Self {
            support,
            is_off,
            held: held.map(|(need, _)| need).collect(),
        }
    }

    /// True if harnesses start in their own namespaces.
    pub(crate) fn has_namespaces(&self) -> bool {
        self.holds(Need::Namespaces)
    }

    fn holds(&self, need: Need) -> bool {
        self.held.contains(&need)
    }

    /// State of the sandbox for runner manifests.
    pub(crate) fn summary(&self) -> Value {
        if self.is_off {
            return json!("off");
        }
        let support = self.support;
        json!({
            "files": support.filesystem, "tcp": support.network, "landlock_abi": support.abi,
            "namespaces": self.has_namespaces(),
        })
    }

    /// Logs the closed and the open rows of the table.
    pub(crate) fn log(&self) {
        let rows = |holds: bool| {
            let rows = TABLE.iter().filter(|row| self.holds(row.need) == holds);
            let rows: Vec<_> = rows.map(|row| row.reach).collect();
            rows.join("; ")
        };
        if self.is_off {
            tracing::warn!("sandbox is off: harnesses reach all that their user can");
        }
        tracing::info!("the sandbox closes: {}", rows(true));
        tracing::info!(
            "the sandbox leaves open: {}. `runnel-harness check` shows what closes it",
            rows(false)
        );
    }

    /// The table, one object for each row: `reach`, `mechanism`, `holds`, and for open rows `without`.
    pub fn to_json(&self) -> Value {
        let row = |row: &Protection| {
            let mut object = json!({"reach": row.reach, "mechanism": row.mechanism, "holds": self.holds(row.need)});
            if !self.holds(row.need) {
                object["without"] = row.without.into();
            }
            object
        };
        TABLE.iter().map(row).collect()
    }
}

impl std::fmt::Display for Protections {
    /// Writes the table for a terminal: one line for each row, and a second one for each open row.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for row in &TABLE {
            let (reach, mechanism) = (row.reach, row.mechanism);
            if self.holds(row.need) {
                writeln!(out, "closed  {reach} ({mechanism})")?;
            } else {
                writeln!(out, "OPEN    {reach} ({mechanism})")?;
                writeln!(out, "          {}", row.without)?;
            }
        }
        Ok(())
    }
}

/// Limits of the service's own cgroup.
mod cgroup {
    use std::fs;
    use std::path::Path;

    /// True if a cgroup (version 2) of this process limits memory and processes.
    pub(super) fn is_limited() -> bool {
        let Ok(membership) = fs::read_to_string("/proc/self/cgroup") else {
            return false;
        };
        let Some(path) = membership
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
        else {
            return false;
        };
        let root = Path::new("/sys/fs/cgroup");
        let directory = root.join(path);
        // Limits of every ancestor apply; `max` means unlimited.
        let limits = |file| {
            let directories = directory
                .ancestors()
                .take_while(|path| path.starts_with(root));
            directories
                .filter_map(|path| fs::read_to_string(path.join(file)).ok())
                .any(|limit| limit.trim().parse::<u64>().is_ok())
        };
        limits("memory.max") && limits("pids.max")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_each_row() {
        let page = include_str!("../../../docs/security-harness.md");
        for row in &TABLE {
            let without = if row.without.is_empty() {
                "-"
            } else {
                row.without
            };
            let line = format!("| {} | {} | {without} |", row.reach, row.mechanism);
            assert!(
                page.contains(&line),
                "docs/security-harness.md lacks {line}"
            );
        }
    }

    #[test]
    fn sandbox_that_is_off_closes_what_needs_none() {
        let text = "secret = \"env:S\"\nworkspaces = \"/tmp/w\"\nsandbox = \"off\"\n\
                    [[harnesses]]\npreset = \"codex\"";
        let off = Protections::examine(Some(&HarnessFile::parse(text).unwrap()));
        assert_eq!(off.summary(), "off");
        let table = off.to_json();
        let row = |reach: &str| {
            let mut rows = table.as_array().unwrap().iter();
            rows.find(|row| row["reach"].as_str().unwrap().starts_with(reach))
                .unwrap()
        };
        assert_eq!(row("contents of files")["holds"], false);
        assert!(row("contents of files")["without"].is_string());
        assert_eq!(row("core dumps")["holds"], true);
        assert!(off.to_string().contains("OPEN    contents of files"));
    }
}
