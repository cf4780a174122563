//! API keys: checks of new ones, and the agents that a key reaches.

use std::sync::Arc;

use protocol::admin::Fault;
use protocol::api_key::{ApiKeySpec, KeyRole};
use protocol::id::AgentId;
use protocol::limiter::OwnLimits;

use crate::agent::is_name;
use crate::own_limits::check_limits;

/// The end of the year 9999, in epoch seconds. Later times are milliseconds by mistake.
const LATEST: i64 = 253_402_300_799;

/// Maximum agents that a key is restricted to: lists of runs select by all of them.
pub const MAX_AGENTS: usize = 16;

/// The agents that a credential reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AgentReach {
    /// All agents of the workspace.
    #[default]
    All,
    /// These agents, whether they exist or not.
    Only(Arc<[AgentId]>),
}

impl AgentReach {
    /// The scope of a key with this list.
    pub fn of(agents: Option<Vec<AgentId>>) -> Self {
        agents.map_or(Self::All, |agents| Self::Only(agents.into()))
    }

    /// Returns true if the credential reaches an agent.
    pub fn reaches(&self, agent: AgentId) -> bool {
        self.only().is_none_or(|agents| agents.contains(&agent))
    }

    /// Returns the agents of a restricted credential; `None`: all agents.
    pub fn only(&self) -> Option<&[AgentId]> {
        match self {
            Self::All => None,
            Self::Only(agents) => Some(agents),
        }
    }
}

/// Returns all faults of a new key, except agents that do not exist.
pub fn check_api_key(spec: &ApiKeySpec, now_seconds: i64) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !is_name(&spec.name) {
        let message = "must have 1 to 128 bytes and no control characters";
        faults.push(Fault::new("/name", message));
    }
    if let Some(at) = spec.expires_at
        && !(now_seconds + 1..=LATEST).contains(&at)
    {
        let message = "must be a time in the future, in epoch seconds";
        faults.push(Fault::new("/expires_at", message));
    }
    if let Some(agents) = &spec.agents {
        // Other roles administer the workspace, which a list of agents cannot bound.
        if !matches!(spec.role, KeyRole::Client | KeyRole::Approver) {
            let message = "restricts keys of role client or approver only; leave it out";
            faults.push(Fault::new("/agents", message));
        } else if !(1..=MAX_AGENTS).contains(&agents.len()) {
            let message = "must have 1 to 16 agents; leave it out for all agents";
            faults.push(Fault::new("/agents", message));
        }
    }
    if let Some(limits) = &spec.limits {
        faults.extend(limit_faults(limits, spec.role));
    }
    faults
}

fn limit_faults(limits: &OwnLimits, role: KeyRole) -> Vec<Fault> {
    // A limit without effect would give false safety.
    if matches!(role, KeyRole::Owner | KeyRole::Viewer) {
        let message =
            "limits keys that start runs, of role admin, operator or client; leave it out";
        return vec![Fault::new("/limits", message)];
    }
    check_limits(limits)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn spec(role: KeyRole) -> ApiKeySpec {
        ApiKeySpec {
            name: "key".to_owned(),
            role,
            expires_at: None,
            agents: None,
            limits: None,
        }
    }

    fn pointers(spec: &ApiKeySpec, now: i64) -> Vec<String> {
        let faults = check_api_key(spec, now);
        faults.into_iter().map(|fault| fault.pointer).collect()
    }

    #[test]
    fn keys_of_clients_and_approvers_are_restricted_to_agents() {
        for (role, count, is_valid) in [
            (KeyRole::Client, 1, true),
            (KeyRole::Client, 16, true),
            (KeyRole::Client, 0, false),
            (KeyRole::Client, 17, false),
            (KeyRole::Approver, 16, true),
            (KeyRole::Admin, 1, false),
            (KeyRole::Operator, 1, false),
            (KeyRole::Viewer, 1, false),
            (KeyRole::Owner, 1, false),
        ] {
            let agents = Some(vec!["hello".to_owned(); count]);
            let spec = ApiKeySpec {
                agents,
                ..spec(role)
            };
            let expected: &[&str] = if is_valid { &[] } else { &["/agents"] };
            assert_eq!(pointers(&spec, 0), expected, "{role:?} {count}");
        }
    }

    #[test]
    fn only_keys_that_start_runs_have_limits() {
        for (role, is_valid) in [
            (KeyRole::Client, true),
            (KeyRole::Operator, true),
            (KeyRole::Admin, true),
            (KeyRole::Viewer, false),
            (KeyRole::Owner, false),
        ] {
            let limits = OwnLimits {
                rate: Some(1),
                ..OwnLimits::default()
            };
            let spec = ApiKeySpec {
                limits: Some(limits),
                ..spec(role)
            };
            let expected: &[&str] = if is_valid { &[] } else { &["/limits"] };
            assert_eq!(pointers(&spec, 0), expected, "{role:?}");
        }
    }

    #[test]
    fn scope_reaches_listed_agents_only() {
        let [one, two] = [1, 2].map(|id| AgentId(Uuid::from_u128(id)));
        let all = AgentReach::of(None);
        assert!(all.reaches(one) && all.reaches(two));
        let only = AgentReach::of(Some(vec![one]));
        assert!(only.reaches(one) && !only.reaches(two));
        assert!(!AgentReach::of(Some(Vec::new())).reaches(one));
    }

    #[test]
    fn new_keys_expire_in_the_future() {
        let now = 1_000_000;
        for (expires_at, is_valid) in [
            (None, true),
            (Some(now + 1), true),
            (Some(LATEST), true),
            (Some(now), false),
            (Some(-1), false),
            (Some(LATEST + 1), false),
            (Some(i64::MAX), false),
        ] {
            let spec = ApiKeySpec {
                expires_at,
                ..spec(KeyRole::Client)
            };
            let expected: &[&str] = if is_valid { &[] } else { &["/expires_at"] };
            assert_eq!(pointers(&spec, now), expected, "{expires_at:?}");
        }
    }
}
