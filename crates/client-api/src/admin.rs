//! The admin API. It needs role `admin`; workspaces and the pause of all need role `owner`.

pub(super) mod advice;
pub(super) mod agent_skills;
pub(super) mod agents;
pub(super) mod api_keys;
pub(super) mod approvals;
pub(super) mod budgets;
pub(super) mod catalog;
pub(super) mod changes;
pub(super) mod dry_run;
pub(super) mod endpoints;
pub(super) mod health;
pub(super) mod knowledge;
pub(super) mod limits;
pub(super) mod mcp_servers;
pub(super) mod model_providers;
pub(super) mod pauses;
pub(super) mod runners;
pub(super) mod schedules;
pub(super) mod sources;
pub(super) mod webhooks;
pub(super) mod workspaces;
