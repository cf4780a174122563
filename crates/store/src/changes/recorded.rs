//! Work with the record of its changes.

use domain::change::patch_between;
use protocol::change::ChangeAction;
use sea_orm::DatabaseTransaction;
use uuid::Uuid;

use super::documents::{ObjectDocument, read_objects};
use super::{Administered, ChangeStamp, ChangedObjects, WhichObjects};
use crate::advisory_key::AdvisoryKey;
use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::sql::inserted;

/// Applies the work and stores a row for each object that it has changed.
pub(crate) struct Recorded<W> {
    pub(crate) work: W,
    pub(crate) stamp: ChangeStamp,
}

impl<W: Administered> Mutation for Recorded<W> {
    type Output = W::Output;
    // The rows follow the work: a failure must undo both.
    const SAVEPOINT: bool = true;
    const URGENT: bool = W::URGENT;
    const TAKES_EVENT: bool = W::TAKES_EVENT;
    const CHANGES_AGENTS: bool = W::CHANGES_AGENTS;

    fn lock(&self) -> Option<String> {
        self.work.lock()
    }

    fn weight(&self) -> usize {
        self.work.weight()
    }

    fn order(&self) -> Uuid {
        self.work.order()
    }

    fn conversation(&self) -> Option<&str> {
        self.work.conversation()
    }

    fn advisory_keys(&self) -> Vec<AdvisoryKey> {
        self.work.advisory_keys()
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<W::Output, StoreError> {
        let changed = self.work.changed_objects();
        let mut before = Vec::with_capacity(changed.len());
        for objects in &changed {
            before.push(read_objects(tx, &self.stamp, objects).await?);
        }
        let output = self.work.apply(tx).await?;
        let mut rows = Vec::new();
        for (objects, before) in changed.iter().zip(before) {
            self.differences(tx, objects, before, &mut rows).await?;
        }
        let into = "changes (id, workspace_id, kind, object_id, object_name, action, changed_by, request_id, patch, \
                    document, version, at)";
        if !rows.is_empty() {
            inserted(tx, into, rows).await?;
        }
        Ok(output)
    }

    // A repeated change finds its own result: equal documents, thus no second row.
    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        output: &W::Output,
    ) -> Result<bool, StoreError> {
        self.work.is_committed(tx, output).await
    }

    fn after_error(output: W::Output, error: StoreError) -> Result<W::Output, StoreError> {
        W::after_error(output, error)
    }
}

/// A row of the table.
type ChangeRow = [sea_orm::Value; 12];

impl<W: Administered> Recorded<W> {
    async fn differences(
        &self,
        tx: &DatabaseTransaction,
        objects: &ChangedObjects,
        before: Vec<ObjectDocument>,
        rows: &mut Vec<ChangeRow>,
    ) -> Result<(), StoreError> {
        if !matches!(objects.which, WhichObjects::ConfiguredExcept(_)) {
            let after = read_objects(tx, &self.stamp, objects).await?;
            let before = before.into_iter().next();
            self.difference(objects, before, after.into_iter().next(), rows);
            return Ok(());
        }
        // The condition no longer finds these objects, so they are read by their keys.
        for before in before {
            let which = WhichObjects::Key(before.key.clone());
            let objects = ChangedObjects {
                which,
                ..objects.clone()
            };
            let after = read_objects(tx, &self.stamp, &objects).await?;
            self.difference(&objects, Some(before), after.into_iter().next(), rows);
        }
        Ok(())
    }

    fn difference(
        &self,
        objects: &ChangedObjects,
        before: Option<ObjectDocument>,
        after: Option<ObjectDocument>,
        rows: &mut Vec<ChangeRow>,
    ) {
        let document = |of: &Option<ObjectDocument>| of.as_ref().map(|of| of.document.clone());
        let (old, new) = (document(&before), document(&after));
        let patch = patch_between(old.as_ref(), new.as_ref());
        if patch.is_empty() {
            return;
        }
        let action = match (&old, &new) {
            (None, _) => ChangeAction::Created,
            (Some(_), Some(_)) => ChangeAction::Changed,
            (Some(_), None) => ChangeAction::Deleted,
        };
        let Some(object) = after.or(before) else {
            return;
        };
        let stamp = &self.stamp;
        // Ids of one transaction count on, so that they are unique and in order.
        let id = Uuid::from_u128(stamp.id.as_u128().wrapping_add(rows.len() as u128));
        rows.push([
            id.to_string().into(),
            objects.workspace.as_str().into(),
            objects.kind.as_str().into(),
            object.key.join("/").into(),
            object.name.into(),
            action.as_str().into(),
            stamp.by.stored().into(),
            stamp.request_id.clone().into(),
            serde_json::Value::Array(patch).to_string().into(),
            new.map(|document| document.to_string()).into(),
            object.version.into(),
            stamp.at.into(),
        ]);
    }
}
