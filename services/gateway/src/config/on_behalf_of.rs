//! `credential` of tools and MCP servers: calls on behalf of the actor.

use serde_json::Value;

use super::fault::ConfigFault;
use super::oidc::issuer;
use super::secret_ref::SecretRef;
use super::table::{Reported, Table, name, parsed, text};

/// `credential.on_behalf_of` of `[[tools]]` and `[[mcp_servers]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnBehalfOfEntry {
    pub issuer: String,
    pub audience: String,
    pub scopes: Vec<String>,
    pub client_id: String,
    pub client_secret: Option<SecretRef>,
}

/// Reads `credential` of a tool or server.
pub(super) fn read_credential(table: &mut Table<'_>) -> Result<Option<OnBehalfOfEntry>, Reported> {
    table.section_if_any("credential", |mut table| {
        let entry = table.section("on_behalf_of", read_entry);
        table.close()?;
        entry
    })
}

fn read_entry(mut table: Table<'_>) -> Result<OnBehalfOfEntry, Reported> {
    let issuer = table.required("issuer", issuer);
    let audience = table.required("audience", name);
    let scopes = table.items("scopes", read_scope);
    let client_id = table.required("client_id", name);
    let client_secret = table.optional("client_secret", parsed::<SecretRef>);
    table.close()?;
    Ok(OnBehalfOfEntry {
        issuer: issuer?,
        audience: audience?,
        scopes: scopes?,
        client_id: client_id?,
        client_secret: client_secret?,
    })
}

fn read_scope(
    pointer: String,
    value: Value,
    faults: &mut Vec<ConfigFault>,
) -> Result<String, Reported> {
    let scope = text(value).and_then(|scope| {
        // A space would be a second scope.
        let is_scope = scope.bytes().all(|byte| byte.is_ascii_graphic());
        is_scope
            .then_some(scope)
            .ok_or("must be one scope without spaces")
    });
    scope.map_err(|message| {
        faults.push(ConfigFault::new(pointer, message));
        Reported
    })
}
