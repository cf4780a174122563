//! Skills activated in a conversation, stored in a state entry that no runner can write.

use domain::normalize::StateUpdate;
use domain::state::ACTIVATED_SKILLS;
use protocol::JsonObject;
use protocol::id::{RunId, WorkspaceId};
use sea_orm::DatabaseTransaction;
use serde_json::json;
use uuid::Uuid;

use crate::advisory_key::AdvisoryKey;
use crate::error::{StoreError, parsed_json};
use crate::model::state::StateAccess;
use crate::mutation::Mutation;
use crate::sql::Sql;
use crate::state::{find_locked, lock_live_run, upsert};
use secrets::digest::sha256_hex;

/// Activates a skill in a live run. False: the run has ended.
#[derive(Clone, Debug)]
pub struct ActivateSkill {
    pub run_id: RunId,
    pub workspace: WorkspaceId,
    pub access: StateAccess,
    pub skill_name: String,
    pub at: i64,
}

impl Mutation for ActivateSkill {
    type Output = bool;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    fn advisory_keys(&self) -> Vec<AdvisoryKey> {
        vec![AdvisoryKey::of(&self.access.identity)]
    }

    /// Idempotent.
    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(false);
        }
        self.begin_entry(tx).await?;
        let current = find_locked(tx, &self.access, ACTIVATED_SKILLS).await?;
        let mut activated: JsonObject = match &current {
            Some(row) => parsed_json("state_entries.value", &row.key, &row.value)?,
            None => JsonObject::new(),
        };
        let activation = json!({"run_id": self.run_id, "activated_at": self.at.div_euclid(1000)});
        activated.insert(self.skill_name.clone(), activation);
        let update = StateUpdate {
            scope: self.access.scope,
            identity: self.access.identity.clone(),
            key: ACTIVATED_SKILLS.to_owned(),
            value: json!(activated).to_string(),
        };
        upsert(tx, &self.workspace, self.run_id, None, &update, 1, self.at).await?;
        Ok(true)
    }
}

impl ActivateSkill {
    /// Creates the entry to lock, so concurrent first activations keep both skills.
    async fn begin_entry(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let sql = "INSERT INTO state_entries (scope, scope_sha256, key, workspace_id, value, version, \
                   run_id, updated_at) VALUES ($1, $2, $3, $4, '{}', 0, $5, $6) ON CONFLICT DO NOTHING";
        let values = vec![
            self.access.scope.as_str().into(),
            sha256_hex(self.access.identity.as_bytes()).into(),
            ACTIVATED_SKILLS.into(),
            self.workspace.as_str().into(),
            self.run_id.to_string().into(),
            self.at.into(),
        ];
        tx.execute_sql(sql.to_owned(), values).await
    }
}
