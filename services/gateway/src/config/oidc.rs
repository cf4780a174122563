//! `[auth.oidc]`: sign-in of people with an `OpenID` provider.

use std::time::Duration;

use keys::sign_in::{RoleRule, SignInRules};
use protocol::api_key::KeyRole;
use protocol::id::WorkspaceId;
use serde_json::Value;

use super::fault::ConfigFault;
use super::table::{Reported, Table, integer, name, text};
use egress::parse_plain_url;

const DEFAULT_WORKSPACE: &str = "default";
const DEFAULT_HOURS: u64 = 12;
const DEFAULT_SCOPES: [&str; 3] = ["openid", "email", "profile"];
/// Two weeks: a person without a role at the provider keeps a session for this long.
const MAX_HOURS: u64 = 14 * 24;
/// Roles of a session. An owner concerns all workspaces, so only the command line makes its key.
const ROLES: &str = "must be admin, operator, viewer, approver or client";

/// Reads `[auth.oidc]`.
pub(super) fn read_sign_in(mut table: Table<'_>) -> Result<SignInRules, Reported> {
    let issuer = table.required("issuer", issuer);
    let audience = table.required("audience", name);
    let client_id = table.optional("client_id", name);
    let scopes = table.items_if_any("scopes", read_name);
    let workspace = table.optional("workspace", name);
    let hours = table.optional("session_hours", integer(1..=MAX_HOURS));
    let roles = table.items("roles", |pointer, value, faults| {
        read_rule(Table::open(pointer, value, faults)?)
    });
    // A faulty rule is reported by itself.
    let has_roles = !roles.as_ref().is_ok_and(Vec::is_empty);
    let has_roles = table.demand(
        "roles",
        has_roles,
        "is required: without a rule, every person is refused",
    );
    table.close()?;
    has_roles?;
    Ok(SignInRules {
        issuer: issuer?,
        audience: audience?,
        client_id: client_id?,
        scopes: scopes?.unwrap_or_else(|| DEFAULT_SCOPES.map(str::to_owned).into()),
        workspace: WorkspaceId(workspace?.unwrap_or_else(|| DEFAULT_WORKSPACE.to_owned())),
        session: Duration::from_hours(hours?.unwrap_or(DEFAULT_HOURS)),
        roles: roles?,
    })
}

fn read_rule(mut table: Table<'_>) -> Result<RoleRule, Reported> {
    let claim = table.required("claim", name);
    let value = table.required("value", name);
    let role = table.required("role", role);
    let agents = table.items_if_any("agents", read_name);
    let is_bounded =
        |agents: &Vec<String>| (1..=domain::api_key::MAX_AGENTS).contains(&agents.len());
    let has_agents = matches!(&agents, Ok(Some(agents)) if !is_bounded(agents));
    let agents_are_few = table.demand(
        "agents",
        !has_agents,
        "must have 1 to 16 agents; leave it out for all agents",
    );
    // An unknown role is reported by itself.
    let is_restrictable = matches!(role, Ok(KeyRole::Client | KeyRole::Approver) | Err(_));
    let may_have_agents = table.demand(
        "agents",
        is_restrictable || !matches!(agents, Ok(Some(_))),
        "restricts roles client and approver only; leave it out",
    );
    table.close()?;
    agents_are_few?;
    may_have_agents?;
    Ok(RoleRule {
        claim: claim?,
        value: value?,
        role: role?,
        agents: agents?,
    })
}

fn read_name(
    pointer: String,
    value: Value,
    faults: &mut Vec<ConfigFault>,
) -> Result<String, Reported> {
    name(value).map_err(|message| {
        faults.push(ConfigFault::new(pointer, message));
        Reported
    })
}

fn role(value: Value) -> Result<KeyRole, &'static str> {
    let role = KeyRole::parse(&text(value)?).filter(|role| *role != KeyRole::Owner);
    role.ok_or(ROLES)
}

/// As the tokens have it: with or without a slash at its end.
pub(super) fn issuer(value: Value) -> Result<String, String> {
    let issuer = text(value)?;
    // The text itself is compared, which a parsed URL would change.
    let url = parse_plain_url(&issuer).map_err(|error| error.to_string())?;
    if url.query().is_some() {
        return Err(
            "must have no query: it is the `issuer` of the provider's discovery document"
                .to_owned(),
        );
    }
    Ok(issuer)
}
