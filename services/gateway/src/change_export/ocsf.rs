//! Changes as events of the class Entity Management of the Open Cybersecurity Schema Framework.

use protocol::change::ChangeAction;
use protocol::principal::{Principal, PrincipalKind};
use serde_json::{Value, json};
use store::ExportedChange;

const SCHEMA_VERSION: &str = "1.3.0";
/// Identity & Access Management.
const CATEGORY: u32 = 3;
/// Entity Management.
const CLASS: u32 = 3004;
const INFORMATIONAL: u32 = 1;
const SUCCESS: u32 = 1;

/// The event of a change. The JSON patch and the kind of the actor are in `unmapped`.
pub(super) fn event(exported: &ExportedChange) -> Value {
    let change = &exported.change;
    let (activity, activity_name) = match change.action {
        ChangeAction::Created => (1, "Create"),
        ChangeAction::Changed => (3, "Update"),
        ChangeAction::Deleted => (4, "Delete"),
    };
    let mut event = json!({
        "category_uid": CATEGORY,
        "category_name": "Identity & Access Management",
        "class_uid": CLASS,
        "class_name": "Entity Management",
        "activity_id": activity,
        "activity_name": activity_name,
        "type_uid": CLASS * 100 + activity,
        "severity_id": INFORMATIONAL,
        "status_id": SUCCESS,
        "time": change.at,
        "metadata": {
            "version": SCHEMA_VERSION,
            "product": {"name": "Runnel", "vendor_name": "Runnel", "version": env!("CARGO_PKG_VERSION")},
            "log_name": "changes",
            "uid": change.id,
        },
        "actor": actor(&change.by),
        "entity": {"uid": change.object_id, "name": change.object_name, "type": change.kind},
        "unmapped": {"actor_kind": change.by.kind, "patch": change.patch},
    });
    if let Some(request_id) = &change.request_id {
        event["metadata"]["correlation_uid"] = json!(request_id);
    }
    if let Some(workspace) = &exported.workspace {
        event["metadata"]["tenant_uid"] = json!(workspace);
    }
    if let Some(version) = change.version {
        event["entity"]["version"] = json!(version.to_string());
    }
    event
}

fn actor(by: &Principal) -> Value {
    let (kind, name) = match by.kind {
        PrincipalKind::Person => (1, "User"),
        PrincipalKind::Config | PrincipalKind::Cli | PrincipalKind::Gateway => (3, "System"),
        _ => (4, "Service"),
    };
    // The schema demands an id or a name; components of the gateway have no id.
    let uid = by.id.as_deref().unwrap_or(by.kind.as_str());
    json!({"user": {"uid": uid, "type_id": kind, "type": name}})
}

#[cfg(test)]
mod tests {
    use protocol::change::ObjectKind;
    use protocol::id::{ChangeId, WorkspaceId};
    use store::ChangeRecord;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn events_have_the_required_members_of_the_class() {
        let id = Uuid::now_v7();
        let mut exported = ExportedChange {
            workspace: Some(WorkspaceId("default".to_owned())),
            change: ChangeRecord {
                id: ChangeId(id),
                kind: ObjectKind::Agent,
                object_id: "a-1".to_owned(),
                object_name: "main".to_owned(),
                action: ChangeAction::Changed,
                by: Principal::identified(PrincipalKind::Person, "ada"),
                request_id: Some("r-1".to_owned()),
                patch: vec![
                    json!({"op": "replace", "path": "/name", "from": "old", "value": "main"}),
                ],
                version: Some(7),
                at: 1_795_291_200_123,
            },
        };
        let read = event(&exported);
        assert_eq!(read["class_uid"], 3004);
        assert_eq!(read["type_uid"], 300_403);
        assert_eq!(read["time"], 1_795_291_200_123_i64);
        assert_eq!(read["metadata"]["uid"], json!(id));
        assert_eq!(read["metadata"]["correlation_uid"], "r-1");
        assert_eq!(read["metadata"]["tenant_uid"], "default");
        assert_eq!(read["actor"]["user"]["uid"], "ada");
        let entity = json!({"uid": "a-1", "name": "main", "type": "agent", "version": "7"});
        assert_eq!(read["entity"], entity);

        exported.workspace = None;
        exported.change.by = PrincipalKind::Config.into();
        let read = event(&exported);
        assert!(read["metadata"].get("tenant_uid").is_none());
        assert_eq!(
            read["actor"]["user"],
            json!({"uid": "config", "type_id": 3, "type": "System"})
        );
    }
}
