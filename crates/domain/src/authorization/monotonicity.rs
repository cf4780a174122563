//! Property: layers only remove grants. Removing any entry of any layer never adds a grant.

use proptest::prelude::*;
use protocol::child_run::ChildGrants;
use protocol::context::{ActorContext, SubjectContext};
use serde_json::{Value, json};

use super::tests::{catalog, registered_skills};
use super::*;
use crate::canonical::canonical_json;

/// Entries of all layers, as one list per part. Each entry can be removed.
const LAYER_ENTRIES: &[(&str, &str, &[&str])] = &[
    ("permissions", "models", &["invoke", "stream"]),
    ("permissions", "tools", &["detail", "call"]),
    ("permissions", "knowledge_bases", &["list", "retrieve"]),
    ("permissions", "history", &["page", "search"]),
    ("permissions", "events", &["get", "page"]),
    ("permissions", "artifacts", &["metadata", "read", "create"]),
    (
        "permissions",
        "storage",
        &["plugin", "workspace", "binding"],
    ),
    (
        "permissions",
        "state",
        &["conversation", "actor", "subject", "runner", "binding"],
    ),
    ("permissions", "files", &["config", "knowledge"]),
    ("permissions", "interactions", &["request"]),
    ("permissions", "agents", &["call"]),
    ("permissions", "schedules", &["wake"]),
    (
        "capabilities",
        "true",
        &["steering", "skill_authoring", "interactions"],
    ),
    ("policy", "models", &["m1", "m2"]),
    ("policy", "tools", &["search", "register_skill"]),
    ("policy", "knowledge_bases", &["k"]),
    ("policy", "skills", &["s", "own"]),
    ("policy", "history", &["page", "search"]),
    ("policy", "events", &["get", "page"]),
    ("policy", "artifacts", &["metadata", "read", "create"]),
    ("policy", "storage", &["plugin", "workspace", "binding"]),
    ("policy", "files", &["rules", "book"]),
    ("policy", "agents", &["helper", "writer"]),
    ("policy", "schedules", &["wake"]),
    ("agent", "true", &["state", "interactions", "steer"]),
    (
        "state",
        "scopes",
        &["conversation", "actor", "subject", "runner", "binding"],
    ),
    ("config", "models", &["m1", "m2"]),
    ("config", "bases", &["k"]),
    ("config", "tools", &["search", "register_skill"]),
    (
        "event",
        "true",
        &[
            "conversation",
            "actor",
            "subject",
            "prompt",
            "interactions",
            "artifacts",
        ],
    ),
];

fn entry_count() -> usize {
    LAYER_ENTRIES
        .iter()
        .map(|(_, _, entries)| entries.len())
        .sum()
}

/// Layers with the selected entries.
struct Layers<'a>(&'a [bool]);

impl Layers<'_> {
    fn list(&self, part: &str, name: &str) -> Vec<&'static str> {
        let mut bits = self.0.iter();
        let all = LAYER_ENTRIES
            .iter()
            .flat_map(|(part, name, entries)| entries.iter().map(move |one| (*part, *name, *one)));
        let entries = all.filter(|_| *bits.next().expect("one bit for each"));
        entries
            .filter(|(its, of, _)| (*its, *of) == (part, name))
            .map(|(_, _, one)| one)
            .collect()
    }

    fn says(&self, part: &str, one: &str) -> bool {
        self.list(part, "true").contains(&one)
    }

    fn lists(&self, part: &str) -> Value {
        let of_part = LAYER_ENTRIES.iter().filter(|(its, _, _)| *its == part);
        of_part
            .map(|(_, name, _)| ((*name).to_owned(), json!(self.list(part, name))))
            .collect()
    }

    fn manifest(&self) -> AgentRunnerManifest {
        let capability = |name| self.says("capabilities", name);
        let manifest = json!({
            "id": "plugin:a/b/c", "name": "c", "label": {}, "permissions": self.lists("permissions"),
            "capabilities": {
                "steering": capability("steering"), "interactions": capability("interactions"),
                "skill_authoring": capability("skill_authoring"),
            },
            "config_schema": [
                {"type": "model-fallback-selector", "name": "model"},
                {"type": "select-knowledge-bases", "name": "bases"},
                {"type": "boolean", "name": "enable-all-tools"}, {"type": "array", "name": "tools"},
            ],
        });
        serde_json::from_value(manifest).unwrap()
    }

    fn agent(&self) -> AgentSpec {
        let agent = json!({
            "name": "a", "event_types": ["*"], "runner_id": "plugin:a/b/c",
            "resource_policy": self.lists("policy"),
            "state_policy": {"enabled": self.says("agent", "state"), "scopes": self.list("state", "scopes")},
            "concurrency": if self.says("agent", "steer") { "steer" } else { "enqueue" },
            "delivery_policy": {"interactions": self.says("agent", "interactions")},
            "config": {
                "model": {"primary": "", "fallbacks": self.list("config", "models")},
                "bases": self.list("config", "bases"),
                "enable-all-tools": false, "tools": self.list("config", "tools"),
            },
        });
        serde_json::from_value(agent).unwrap()
    }

    fn authorized(&self) -> AuthorizationSnapshot {
        self.with_text().0
    }

    /// Returns the snapshot and its stored text.
    fn with_text(&self) -> (AuthorizationSnapshot, String) {
        self.of_parent(None)
    }

    /// Returns the snapshot and text of a child run of this parent.
    fn of_parent(&self, parent: Option<&ParentGrant<'_>>) -> (AuthorizationSnapshot, String) {
        let own = self.agent();
        let peers = peers_of(&own);
        let (manifest, workspace) = (self.manifest(), WorkspaceId("default".to_owned()));
        let talk = ConversationIdentity {
            bot_id: String::new(),
            conversation_id: "c".to_owned(),
            thread_id: String::new(),
        };
        let actor = json!({"actor_type": "user", "actor_id": "u"});
        let actor: ActorContext = serde_json::from_value(actor).unwrap();
        let order = json!({"subject_type": "order", "subject_id": "o"});
        let order: SubjectContext = serde_json::from_value(order).unwrap();
        let happens = |what| self.says("event", what);
        let subject = Subject {
            run_id: RunId(uuid::Uuid::nil()),
            agent_version: 1,
            endpoint_id: EndpointId(uuid::Uuid::nil()),
            event_id: "e",
            has_prompt: happens("prompt"),
            shows_interactions: happens("interactions"),
            has_artifacts: happens("artifacts"),
            registered_skills: &registered_skills(),
            peers: &peers,
            parent,
            token_limits: &[TokenLimit {
                of: LimitedId::Agent(AgentId(uuid::Uuid::nil())),
                per_minute: NonZeroU32::MIN,
            }],
            owner: StateOwner {
                workspace: &workspace,
                runner: &manifest.id,
                agent: AgentId(uuid::Uuid::nil()),
                bot_id: None,
                generation: None,
                conversation: Some(&talk).filter(|_| happens("conversation")),
                actor: Some(&actor).filter(|_| happens("actor")),
                subject: Some(&order).filter(|_| happens("subject")),
            },
        };
        let considered = GrantCandidates {
            catalog: &catalog(),
            registered_skills: subject.registered_skills,
            peers: subject.peers,
            parent: subject.parent,
        };
        let granted = SharedGrants::to(considered, &manifest, &own, EventScope::of(&subject));
        let snapshot = granted.snapshot(&subject);
        let text = granted.text_of(&snapshot);
        (snapshot, text)
    }
}

fn peers_of(own: &AgentSpec) -> Vec<AgentResource> {
    let named = |name: &str| AgentSpec {
        name: name.to_owned(),
        ..own.clone()
    };
    let others = ["helper", "writer", "other"].map(named);
    let ids = [7, 8, 9].map(|id| AgentId(uuid::Uuid::from_u128(id)));
    let nil = AgentId(uuid::Uuid::nil());
    peers(nil, own, ids.into_iter().zip(&others))
}

/// Returns all grants of a snapshot as lines.
fn opened(snapshot: &AuthorizationSnapshot) -> BTreeSet<String> {
    let mut all = (*snapshot.operations).clone();
    let mut name = |kind: &str, value: Value| all.insert(format!("{kind} {value}"));
    let AgentResources {
        models,
        tools,
        knowledge_bases,
        skills,
        agents,
        files,
        storage,
        ..
    } = &*snapshot.resources;
    for model in models {
        for operation in &model.operations {
            name("model", json!([model.model_id, operation]));
        }
    }
    for tool in tools {
        for operation in &tool.operations {
            name("tool", json!([tool.tool_name, operation]));
        }
    }
    for base in knowledge_bases {
        for operation in &base.operations {
            name("base", json!([base.kb_id, operation]));
        }
    }
    for skill in skills {
        name("skill", json!(skill.skill_name));
    }
    for agent in agents {
        name("agent", json!([agent.display_name, agent.operations]));
    }
    for file in files {
        name("file", file["id"].clone());
    }
    for (scope, identity) in &snapshot.state {
        name("state", json!([scope, identity]));
    }
    for flags in [json!(storage), json!(snapshot.available_apis)] {
        for (flag, is_open) in flags.as_object().unwrap() {
            if is_open == true {
                name("flag", json!(flag));
            }
        }
    }
    all
}

#[test]
fn full_layers_grant_everything() {
    let all = opened(&Layers(&vec![true; entry_count()]).authorized());
    for line in [
        "models:stream",
        "storage:binding",
        "runs:list",
        "prompt:get",
        "interactions:request",
        "schedules:wake",
        "base [\"k\",\"retrieve\"]",
        "tool [\"register_skill\",\"call\"]",
        "skill \"own\"",
        "file \"f2\"",
        "agent [\"writer\",[\"call\"]]",
    ] {
        assert!(all.contains(line), "{line}: {all:#?}");
    }
    assert_eq!(
        all.iter()
            .filter(|line| line.starts_with("state ["))
            .count(),
        5
    );
}

/// A list of the request's grants, absent in one of four cases.
fn narrowing(ids: &'static [&'static str]) -> impl Strategy<Value = Option<Vec<String>>> {
    let picked = proptest::sample::subsequence(ids, 0..=ids.len());
    let picked = picked.prop_map(|ids| ids.into_iter().map(str::to_owned).collect());
    proptest::option::weighted(0.75, picked)
}

fn grants() -> impl Strategy<Value = Option<ChildGrants>> {
    let lists = (
        narrowing(&["m1", "m2"]),
        narrowing(&["search", "activate", "register_skill"]),
        narrowing(&["k"]),
        narrowing(&["s", "own"]),
        narrowing(&["helper", "writer"]),
    );
    let grants = lists.prop_map(
        |(models, tools, knowledge_bases, skills, agents)| ChildGrants {
            models,
            tools,
            knowledge_bases,
            skills,
            agents,
        },
    );
    proptest::option::of(grants)
}

/// The same layers for the event of a child run.
fn in_child(entries: &[bool]) -> Vec<bool> {
    let names = LAYER_ENTRIES
        .iter()
        .flat_map(|(part, _, entries)| entries.iter().map(move |one| (*part, *one)));
    let are_of_child = ["actor", "subject"];
    entries
        .iter()
        .zip(names)
        .map(|(entries, (part, one))| *entries && (part != "event" || are_of_child.contains(&one)))
        .collect()
}

#[test]
fn child_at_depth_three_starts_no_child() {
    let entries = vec![true; entry_count()];
    let mut snapshot = Layers(&entries).authorized();
    for depth in 1..=3_usize {
        let parent = ParentGrant {
            snapshot: &snapshot,
            grants: None,
        };
        let (child, _) = Layers(&in_child(&entries)).of_parent(Some(&parent));
        assert_eq!(child.ancestors.len(), depth);
        assert_eq!(child.resources.agents.is_empty(), depth == 3, "{depth}");
        assert_eq!(child.available_apis.child_runs, depth < 3);
        snapshot = child;
    }
    let decided = snapshot.decisions.iter().find(|one| one.kind == "agent");
    let decided = decided.unwrap();
    assert_eq!((decided.granted, decided.layer), (false, Layer::Parent));
}

proptest! {
    #[test]
    fn child_grants_are_subset_of_parent_grants(
        above in proptest::collection::vec(proptest::bool::weighted(0.8), entry_count()),
        below in proptest::collection::vec(proptest::bool::weighted(0.9), entry_count()),
        grants in grants(),
    ) {
        let snapshot = Layers(&above).authorized();
        let parent = ParentGrant { snapshot: &snapshot, grants: grants.as_ref() };
        let below = in_child(&below);
        let (child, text) = Layers(&below).of_parent(Some(&parent));
        prop_assert_eq!(text, canonical_json(&child));
        let (own, may) = (opened(&Layers(&below).authorized()), opened(&snapshot));
        for line in opened(&child) {
            prop_assert!(own.contains(&line) && may.contains(&line), "{line}");
        }
        let Some(grants) = grants else { return Ok(()) };
        if let Some(tools) = grants.tools {
            let names = child.resources.tools.iter().map(|one| &one.tool_name);
            prop_assert!(names.into_iter().all(|name| tools.contains(name)));
        }
        if let Some(models) = grants.models {
            let ids = child.resources.models.iter().map(|one| &one.model_id);
            prop_assert!(ids.into_iter().all(|id| models.contains(id)));
        }
    }

    #[test]
    fn stored_snapshot_text_is_canonical(
        entries in proptest::collection::vec(proptest::bool::weighted(0.8), entry_count()),
    ) {
        let (snapshot, text) = Layers(&entries).with_text();
        prop_assert_eq!(text, canonical_json(&snapshot));
    }

    #[test]
    fn removing_entries_never_adds_grants(
        entries in proptest::collection::vec(proptest::bool::weighted(0.8), entry_count()),
        retained in proptest::collection::vec(proptest::bool::weighted(0.9), entry_count()),
    ) {
        let less: Vec<bool> = entries.iter().zip(&retained).map(|(entries, retained)| *entries && *retained).collect();
        let (before, after) = (Layers(&entries).authorized(), Layers(&less).authorized());
        let (before, after) = (opened(&before), opened(&after));
        let more: Vec<_> = after.difference(&before).collect();
        prop_assert!(more.is_empty(), "{more:?}");
    }
}
