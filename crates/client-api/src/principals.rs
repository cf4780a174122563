//! Names of the API keys among principals.

use protocol::api_key::KeyRole;
use protocol::id::WorkspaceId;
use protocol::principal::{Principal, PrincipalKind};
use store::StoreError;
use web::state::ApiState;

/// Adds the current names of API keys, with one query. Only readers of roles that read the list of keys get names.
pub(crate) async fn name_keys(
    state: &ApiState,
    workspace: &WorkspaceId,
    reader: KeyRole,
    principals: Vec<&mut Principal>,
) -> Result<(), StoreError> {
    if matches!(reader, KeyRole::Approver | KeyRole::Client) {
        return Ok(());
    }
    let keys = principals
        .into_iter()
        .filter(|principal| principal.kind == PrincipalKind::ApiKey);
    let mut keys: Vec<_> = keys.collect();
    let ids = keys.iter().filter_map(|key| key.id.clone());
    let store = state.runs.store();
    let names = store
        .access()
        .find_api_key_names(workspace, ids.collect())
        .await?;
    for key in &mut keys {
        key.name = key.id.as_ref().and_then(|id| names.get(id).cloned());
    }
    Ok(())
}
