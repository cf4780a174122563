//! Creates runs like the gateway: authorized, with context and token, and registered with the mock host.

use std::time::Duration;

use domain::agent::check_agent_for;
use domain::authorization::{AuthorizationSnapshot, ModelLimits, Subject, authorize};
use domain::canonical::canonical_json;
use domain::context::{ContextParts, build_context, context_json};
use domain::event::conversation_of;
use domain::form::{selected, with_defaults};
use domain::locale::RunLocale;
use domain::manifest::AcceptedManifest;
use domain::normalize::ExpectedOutput;
use domain::state::StateOwner;
use domain::trace::RunTrace;
use protocol::JsonObject;
use protocol::admin::AgentSpec;
use protocol::event::EventEnvelope;
use protocol::history::TranscriptItem;
use protocol::id::{AgentId, EndpointId, RunId, WorkspaceId};
use protocol::request::{AgentRunRequest, HostAccess};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use uuid::Uuid;

use super::CheckHarness;
use super::resources::{catalog_for, fill_selectors};
use crate::mock_host::{MockHost, MockRun};
use crate::options::ConformError;
use runner_client::SignedCall;
use runs::context_limits;

/// Default deadline of an agent's runs.
const DEADLINE: Duration = Duration::from_mins(5);

/// Inputs of a run.
pub(crate) struct RunPlan {
    pub(crate) event: EventEnvelope,
    pub(crate) deadline: Duration,
    /// Modifies the request before it is signed.
    pub(crate) modify: fn(&mut Value),
}

/// A run that is ready to be posted.
pub(crate) struct PreparedRun {
    pub(crate) run: RunId,
    pub(crate) snapshot: AuthorizationSnapshot,
    pub(crate) token: SecretString,
    /// Epoch seconds.
    pub(crate) token_expires_at: i64,
    pub(crate) call: SignedCall,
    pub(crate) expected_output: ExpectedOutput,
    /// The token stays valid after the end of the run.
    pub(crate) lasting: bool,
}

impl CheckHarness {
    /// Validates the agent's configuration against the runner's form.
    pub(crate) fn check_config(&self, runner: &AcceptedManifest) -> Result<(), ConformError> {
        let faults = check_agent_for(&self.agent(runner), &runner.manifest);
        match faults.into_iter().next() {
            None => Ok(()),
            Some(fault) => Err(ConformError::Config {
                runner: runner.manifest.id.clone(),
                fault,
            }),
        }
    }

    fn agent(&self, runner: &AcceptedManifest) -> AgentSpec {
        let manifest = &runner.manifest;
        let mut config = with_defaults(&manifest.config_schema, &self.options.config);
        // A runner with a required model must work without `--config`.
        fill_selectors(&manifest.config_schema, &mut config);
        // The manifest bounds what is granted.
        let spec = json!({
            "name": "conform", "event_types": ["*"], "runner_id": manifest.id, "config": config,
            "resource_policy": {
                "history": ["page"], "models": "*", "tools": "*", "knowledge_bases": "*",
            },
            "state_policy": {
                "enabled": true,
                "scopes": ["conversation", "actor", "subject", "runner", "binding"],
            },
        });
        serde_json::from_value(spec).expect("the specification is well formed")
    }

    /// A new message in a new conversation.
    pub(crate) fn message(&self, text: &str) -> RunPlan {
        // A random id: the runner must not continue the conversation of an earlier test.
        let id = format!("conform-{}", Uuid::new_v4().simple());
        Self::plan(json!({
            "event_type": "message.received", "event_id": id, "source": "api",
            "event_time": self.clock.now_seconds(),
            "conversation": {"conversation_id": id},
            "actor": {"actor_type": "user", "actor_id": "conform", "actor_name": "Conform"},
            "subject": {"subject_type": "message", "subject_id": id},
            "input": {"text": text, "contents": [{"type": "text", "text": text}]},
        }))
    }

    /// An event without optional fields.
    pub(crate) fn bare_event() -> RunPlan {
        let id = format!("conform-{}", Uuid::new_v4().simple());
        Self::plan(json!({"event_type": "conform.checked", "event_id": id}))
    }

    fn plan(event: Value) -> RunPlan {
        RunPlan {
            event: serde_json::from_value(event).expect("the event is well formed"),
            deadline: DEADLINE,
            modify: |_| {},
        }
    }

    /// Creates a run from a plan: authorizes it, builds its context and registers it with the mock host.
    pub(crate) fn open(&self, runner: &AcceptedManifest, plan: &RunPlan) -> PreparedRun {
        let run = RunId(Uuid::now_v7());
        let mut snapshot = self.authorize(runner, plan, run);
        // The mock serves a subset; a runner must not see other routes as open.
        snapshot.available_apis = MockHost::serves(snapshot.available_apis);
        let spec = self.agent(runner);
        let lasts = i64::try_from(plan.deadline.as_millis()).unwrap_or(i64::MAX);
        let deadline_at = self.clock.now_ms() + lasts;
        let history = self.history(&snapshot, plan);
        let context = build_context(ContextParts {
            snapshot_sha256: &store::sha256_hex(canonical_json(&snapshot).as_bytes()),
            static_refs: JsonObject::new(),
            locale: RunLocale::of(&plan.event, &spec),
            event: &plan.event,
            event_seq: snapshot.conversation.as_ref().map(|_| 1),
            transcript_before: 0,
            latest_cursor: None,
            state: protocol::context::AgentRunState::default(),
            state_incomplete: Vec::new(),
            config: spec.config,
            arrived_at: self.clock.now_ms(),
            deadline_at,
            trace_id: run.0.simple().to_string(),
            limits: context_limits(&self.limits),
            model_limits: ModelLimits::default(),
            from: None,
            snapshot: &snapshot,
        });
        let token = self.host.open(MockRun {
            snapshot: snapshot.clone(),
            context: context_json(&context).get().to_owned(),
            history,
            deadline_at,
        });
        // The contract has seconds; rounding up would let the token outlive the run.
        let token_expires_at = deadline_at.div_euclid(1000);
        let request = AgentRunRequest {
            runner_id: runner.manifest.id.clone(),
            runner_name: runner.manifest.name.clone(),
            context,
            host: HostAccess {
                base_url: self.callback_url.clone(),
                token: token.expose_secret().to_owned(),
                token_expires_at,
            },
        };
        let mut body = serde_json::to_value(request).expect("a request serialises to JSON");
        // After serialization, since the typed request cannot hold unknown fields.
        (plan.modify)(&mut body);
        let trace = RunTrace::of(run, None).header(None);
        PreparedRun {
            call: self
                .options
                .endpoint
                .run_call(run, 1, trace, body.to_string()),
            expected_output: ExpectedOutput::of(&plan.event),
            lasting: false,
            run,
            snapshot,
            token,
            token_expires_at,
        }
    }

    fn authorize(
        &self,
        runner: &AcceptedManifest,
        plan: &RunPlan,
        run: RunId,
    ) -> AuthorizationSnapshot {
        let workspace = WorkspaceId("conform".to_owned());
        let conversation = conversation_of(&plan.event);
        let owner = StateOwner {
            workspace: &workspace,
            runner: &runner.manifest.id,
            agent: AgentId(Uuid::nil()),
            bot_id: None,
            generation: None,
            conversation: conversation.as_ref(),
            actor: plan.event.actor.as_ref(),
            subject: plan.event.subject.as_ref(),
        };
        let subject = Subject {
            run_id: run,
            agent_version: 1,
            has_prompt: false,
            shows_interactions: false,
            has_artifacts: false,
            registered_skills: &[],
            peers: &[],
            parent: None,
            token_limits: &[],
            endpoint_id: EndpointId(Uuid::nil()),
            event_id: plan.event.event_id.as_deref().unwrap_or_default(),
            owner,
        };
        let agent = self.agent(runner);
        let catalog = catalog_for(&selected(&runner.manifest.config_schema, &agent.config));
        authorize(&catalog, &runner.manifest, &agent, &subject)
    }

    /// The transcript contains the message of the run itself.
    fn history(&self, snapshot: &AuthorizationSnapshot, plan: &RunPlan) -> Vec<TranscriptItem> {
        let text = plan
            .event
            .input
            .as_ref()
            .and_then(|input| input.text.clone());
        let (Some(conversation), Some(text)) = (&snapshot.conversation, text) else {
            return Vec::new();
        };
        vec![TranscriptItem {
            transcript_id: Uuid::now_v7().to_string(),
            event_id: snapshot.event_id.clone(),
            run_id: Some(snapshot.run_id.to_string()),
            conversation_id: Some(conversation.conversation_id.clone()),
            bot_id: None,
            workspace_id: Some(snapshot.workspace_id.to_string()),
            thread_id: None,
            role: "user".to_owned(),
            item_type: "message".to_owned(),
            content_json: Some(json!({"role": "user", "content": text}).into()),
            content: Some(text),
            attachment_refs: Vec::new(),
            seq: 1,
            cursor: Some("conform-1".to_owned()),
            created_at: self.clock.now_seconds(),
            metadata: JsonObject::new(),
        }]
    }
}
