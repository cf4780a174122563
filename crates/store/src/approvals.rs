//! Approvals of tool calls. A use is counted in the transaction that begins the call.

use domain::approval::covers_call;
use domain::run::Run;
use protocol::JsonObject;
use protocol::approval::{ApprovalScope, ApprovalStatus, ArgumentRules};
use protocol::id::{AgentId, ApprovalId, RunId, WorkspaceId};
use protocol::principal::Principal;
use sea_orm::{DatabaseTransaction, Value};

use crate::error::{StoreError, parsed, parsed_json, signed, unsigned};
use crate::mutation::Mutation;
use crate::page::ListPage;
use crate::repositories::{InteractionRepository, RetentionRepository};
use crate::runs::principal_if_any;
use crate::sql::{Sql, SqlRow, text};

mod amendments;

pub(crate) use amendments::write_announced_amendments;

/// Maximum active approvals of a workspace that the API creates. Answers of persons are bounded by their questions.
const MAX_ACTIVE: i64 = 1_000;
/// Maximum approvals that a call is compared with, newest first. Further ones do not cover it.
const MAX_COMPARED: usize = 2_000;
/// Maximum rows per transaction of the sweep.
const SWEPT: usize = 200;

/// An approval. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct ApprovalRecord {
    pub id: ApprovalId,
    pub workspace: WorkspaceId,
    pub scope: ApprovalScope,
    pub agent_id: AgentId,
    /// Of scope `conversation`.
    pub conversation_key: Option<String>,
    pub run_id: Option<RunId>,
    /// Name or pattern of tools.
    pub tool: String,
    /// Hash of the definition of the tool that it adds to the grant of its run. `None`: it adds none.
    pub definition_sha256: Option<String>,
    pub covered: CoveredCalls,
    pub max_uses: Option<u64>,
    pub used: u64,
    pub last_used_at: Option<i64>,
    /// The gateway's id of the question that created it.
    pub interaction_id: Option<String>,
    pub created_at: i64,
    pub created_by: Principal,
    pub expires_at: i64,
    pub revoked: Option<RevokedBy>,
}

/// Calls that an approval covers.
#[derive(Clone, Debug, PartialEq)]
pub enum CoveredCalls {
    /// Calls with arguments that the rules cover.
    Rules(ArgumentRules),
    /// Calls with this hash of tool and arguments.
    Exact { request_sha256: String },
}

/// Time and author of a revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokedBy {
    pub at: i64,
    pub by: Principal,
}

impl ApprovalRecord {
    /// Returns the status at `now`, in epoch milliseconds.
    pub fn status_at(&self, now: i64) -> ApprovalStatus {
        if self.revoked.is_some() {
            ApprovalStatus::Revoked
        } else if self.max_uses.is_some_and(|max| self.used >= max) {
            ApprovalStatus::Used
        } else if self.expires_at <= now {
            ApprovalStatus::Expired
        } else {
            ApprovalStatus::Active
        }
    }

    fn covers(&self, call: &CallToApprove<'_>) -> bool {
        match &self.covered {
            CoveredCalls::Exact { request_sha256 } => {
                self.tool == call.tool && request_sha256 == call.request_sha256
            }
            CoveredCalls::Rules(rules) => {
                covers_call(&self.tool, rules, call.tool, call.parameters)
            }
        }
    }
}

/// A call that needs an approval.
#[derive(Clone, Copy, Debug)]
pub struct CallToApprove<'a> {
    pub tool: &'a str,
    pub parameters: &'a JsonObject,
    pub request_sha256: &'a str,
    /// Hash of the tool's definition, if the call needs an amendment. `None`: the run was granted the tool.
    pub definition_sha256: Option<&'a str>,
}

const COLUMNS: &str = "id, workspace_id, scope, agent_id, conversation_key, run_id, tool, definition_sha256, \
    arguments, request_sha256, max_uses, used, last_used_at, interaction_id, created_at, created_by, expires_at, \
    revoked_at, revoked_by";

/// Condition of an approval that covers calls at `$2`.
const ACTIVE: &str =
    "revoked_at IS NULL AND expires_at > $2 AND (max_uses IS NULL OR used < max_uses)";

impl InteractionRepository<'_> {
    /// Approvals that cover a call of this run at `now`. Those of the run itself come first, then the newest. Only
    /// amendments cover a call that needs one, and they cover no other.
    pub async fn find_covering_approvals(
        self,
        run: &Run,
        call: CallToApprove<'_>,
        now: i64,
    ) -> Result<Vec<ApprovalId>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM approvals WHERE workspace_id = $1 AND {ACTIVE} \
             AND coalesce(definition_sha256, '') = $6 AND (run_id = $3 AND scope = 'run' \
             OR agent_id = $4 AND (scope = 'agent' OR scope = 'conversation' AND conversation_key = $5)) \
             ORDER BY CASE WHEN scope = 'run' THEN 0 ELSE 1 END, id DESC LIMIT {MAX_COMPARED}"
        );
        let values = vec![
            run.workspace.as_str().into(),
            now.into(),
            text(run.id),
            run.agent_id.to_string().into(),
            // Null for a run without a conversation, which equals no key.
            run.conversation_key.clone().into(),
            call.definition_sha256.unwrap_or_default().into(),
        ];
        let rows = self.db.readers.query_sql(sql, values).await?;
        let mut covering = Vec::new();
        for row in &rows {
            let approval = read_approval(row)?;
            if approval.covers(&call) {
                covering.push(approval.id);
            }
        }
        Ok(covering)
    }

    /// An approval of the workspace.
    pub async fn find_approval_of_calls(
        self,
        workspace: &WorkspaceId,
        id: ApprovalId,
    ) -> Result<Option<ApprovalRecord>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM approvals WHERE id = $1 AND workspace_id = $2");
        let values = vec![id.to_string().into(), workspace.as_str().into()];
        let rows = self.db.readers.query_sql(sql, values).await?;
        rows.first().map(read_approval).transpose()
    }

    /// Approvals of the workspace before `before`, newest first.
    pub async fn newest_approvals(
        self,
        workspace: &WorkspaceId,
        before: Option<&str>,
        limit: u64,
    ) -> Result<ListPage<ApprovalRecord>, StoreError> {
        let mut values: Vec<Value> = vec![workspace.as_str().into()];
        let older = before.map_or("", |before| {
            values.push(before.into());
            "AND id < $2"
        });
        // One more than the page shows whether another follows.
        let sql = format!(
            "SELECT {COLUMNS} FROM approvals WHERE workspace_id = $1 {older} ORDER BY id DESC LIMIT {}",
            limit + 1
        );
        let found = self.db.readers.query_sql(sql, values).await?;
        let items = found
            .iter()
            .take(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(ListPage {
            items: items.map(read_approval).collect::<Result<_, _>>()?,
            has_more: found.len() as u64 > limit,
        })
    }
}

fn read_approval(row: &SqlRow) -> Result<ApprovalRecord, StoreError> {
    let id = row.text("id")?;
    let corrupt = |column| StoreError::Corrupt {
        column,
        row: id.clone(),
    };
    let scope = ApprovalScope::parse(&row.text("scope")?);
    let covered = match (
        row.text_if_any("arguments")?,
        row.text_if_any("request_sha256")?,
    ) {
        (Some(rules), None) => {
            CoveredCalls::Rules(parsed_json("approvals.arguments", &id, &rules)?)
        }
        (None, Some(request_sha256)) => CoveredCalls::Exact { request_sha256 },
        // A row with neither or both covers an unknown set of calls.
        _ => return Err(corrupt("approvals.arguments")),
    };
    let principal = |column: &'static str, stored: Option<String>| {
        principal_if_any(column, &id, stored.as_deref())
    };
    let created_by = principal("approvals.created_by", Some(row.text("created_by")?))?;
    let revoked_by = principal("approvals.revoked_by", row.text_if_any("revoked_by")?)?;
    let revoked = row.number_if_any("revoked_at")?.zip(revoked_by);
    let run_id = row.text_if_any("run_id")?;
    let number = |column: &'static str, stored| unsigned(column, &id, stored);
    Ok(ApprovalRecord {
        workspace: WorkspaceId(row.text("workspace_id")?),
        scope: scope.ok_or_else(|| corrupt("approvals.scope"))?,
        agent_id: parsed("approvals.agent_id", &id, &row.text("agent_id")?)?,
        conversation_key: row.text_if_any("conversation_key")?,
        run_id: run_id
            .map(|run| parsed("approvals.run_id", &id, &run))
            .transpose()?,
        tool: row.text("tool")?,
        definition_sha256: row.text_if_any("definition_sha256")?,
        covered,
        max_uses: row
            .number_if_any("max_uses")?
            .map(|max| number("approvals.max_uses", max))
            .transpose()?,
        used: number("approvals.used", row.number("used")?)?,
        last_used_at: row.number_if_any("last_used_at")?,
        interaction_id: row.text_if_any("interaction_id")?,
        created_at: row.number("created_at")?,
        created_by: created_by.ok_or_else(|| corrupt("approvals.created_by"))?,
        expires_at: row.number("expires_at")?,
        revoked: revoked.map(|(at, by)| RevokedBy { at, by }),
        id: parsed("approvals.id", &id, &id)?,
    })
}

pub(crate) async fn insert_approval(tx: &impl Sql, new: &ApprovalRecord) -> Result<(), StoreError> {
    let (arguments, sha256) = match &new.covered {
        CoveredCalls::Rules(rules) => (Some(domain::canonical::canonical_json(rules)), None),
        CoveredCalls::Exact { request_sha256 } => (None, Some(request_sha256.clone())),
    };
    let sql = "INSERT INTO approvals (id, workspace_id, scope, agent_id, conversation_key, run_id, tool, arguments, \
        request_sha256, max_uses, used, interaction_id, created_at, created_by, expires_at, definition_sha256) \
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 0, $11, $12, $13, $14, $15)";
    let values: Vec<Value> = vec![
        new.id.to_string().into(),
        new.workspace.as_str().into(),
        new.scope.as_str().into(),
        new.agent_id.to_string().into(),
        new.conversation_key.clone().into(),
        new.run_id.map(|run| run.to_string()).into(),
        new.tool.as_str().into(),
        arguments.into(),
        sha256.into(),
        new.max_uses.map(signed).into(),
        new.interaction_id.clone().into(),
        new.created_at.into(),
        new.created_by.stored().into(),
        new.expires_at.into(),
        new.definition_sha256.clone().into(),
    ];
    tx.execute_sql(sql.to_owned(), values).await
}

/// Counts a use of the first of these approvals that is still active, by compare-and-set. `None`: none is.
pub(crate) async fn use_approval(
    tx: &impl Sql,
    covering: &[ApprovalId],
    at: i64,
) -> Result<Option<ApprovalId>, StoreError> {
    for id in covering {
        let sql = format!(
            "UPDATE approvals SET used = used + 1, last_used_at = $2 WHERE id = $1 AND {ACTIVE} RETURNING id"
        );
        let values = vec![id.to_string().into(), at.into()];
        if !tx.query_sql(sql, values).await?.is_empty() {
            return Ok(Some(*id));
        }
    }
    Ok(None)
}

/// Creates an approval over the API.
#[derive(Clone, Debug)]
pub struct CreateApproval(pub ApprovalRecord);

impl Mutation for CreateApproval {
    /// False if the workspace has the maximum of active approvals.
    type Output = bool;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let new = &self.0;
        let sql = format!(
            "SELECT CAST(COUNT(*) AS BIGINT) AS n FROM approvals WHERE workspace_id = $1 AND {ACTIVE}"
        );
        let values = vec![new.workspace.as_str().into(), new.created_at.into()];
        let counted = tx.query_sql(sql, values).await?;
        let active = counted.first().map_or(Ok(0), |row| row.number("n"))?;
        if active >= MAX_ACTIVE {
            return Ok(false);
        }
        insert_approval(tx, new).await?;
        Ok(true)
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        output: &bool,
    ) -> Result<bool, StoreError> {
        let sql = "SELECT id FROM approvals WHERE id = $1".to_owned();
        let found = tx
            .query_sql(sql, vec![self.0.id.to_string().into()])
            .await?;
        Ok(*output && !found.is_empty())
    }
}

/// Revokes an approval. Calls that have begun continue. No effect on a revoked one.
#[derive(Clone, Debug)]
pub struct RevokeApproval {
    pub workspace: WorkspaceId,
    pub id: ApprovalId,
    pub by: Principal,
    /// Epoch milliseconds.
    pub at: i64,
}

impl Mutation for RevokeApproval {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let sql = "UPDATE approvals SET revoked_at = $3, revoked_by = $4 \
            WHERE id = $1 AND workspace_id = $2 AND revoked_at IS NULL";
        let values = vec![
            self.id.to_string().into(),
            self.workspace.as_str().into(),
            self.at.into(),
            self.by.stored().into(),
        ];
        tx.execute_sql(sql.to_owned(), values).await
    }
}

struct SweepApprovals {
    expired_before: i64,
}

impl Mutation for SweepApprovals {
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let sql = format!(
            "DELETE FROM approvals WHERE id IN \
             (SELECT id FROM approvals WHERE expires_at < $1 ORDER BY expires_at LIMIT {SWEPT}) RETURNING id"
        );
        let deleted = tx.query_sql(sql, vec![self.expired_before.into()]);
        Ok(deleted.await?.len() as u64)
    }
}

impl RetentionRepository<'_> {
    /// Deletes a batch of approvals that expired before this time, in epoch milliseconds; returns their number.
    pub async fn sweep_approvals(self, expired_before: i64) -> Result<u64, StoreError> {
        self.db.write(SweepApprovals { expired_before }).await
    }
}
