/** The request of a run and the manifest of a runner, as `openapi/runner.json` defines them. */

import type { RunEvent } from "../events.js";
import type { ActorContext, AgentInput, ContentElement, Json, StateScope, SubjectContext } from "../types.js";

/** Operations that a runner asks for. An agent of it is granted at most these. */
export interface Permissions {
  models?: readonly ("invoke" | "stream" | "rerank" | "count_tokens")[];
  tools?: readonly ("detail" | "call")[];
  knowledge_bases?: readonly ("list" | "retrieve")[];
  history?: readonly ("page" | "search" | "workspace")[];
  events?: readonly ("get" | "page")[];
  artifacts?: readonly ("metadata" | "read" | "create")[];
  storage?: readonly ("plugin" | "workspace" | "binding")[];
  state?: readonly StateScope[];
  files?: readonly ("config" | "knowledge")[];
  interactions?: readonly "request"[];
  agents?: readonly "call"[];
  schedules?: readonly "wake"[];
  platform_api?: readonly string[];
}

/** Capabilities of a runner, for display. They grant nothing. */
export interface Capabilities {
  streaming?: boolean;
  tool_calling?: boolean;
  knowledge_retrieval?: boolean;
  multimodal_input?: boolean;
  event_context?: boolean;
  platform_api?: boolean;
  interrupt?: boolean;
  stateful_session?: boolean;
  self_managed_context?: boolean;
  skill_authoring?: boolean;
  steering?: boolean;
  interactions?: boolean;
  resumable?: boolean;
}

/** Event of the run, without its large parts. `event_time` is in epoch seconds. */
export interface AgentEventContext {
  event_id: string;
  event_type: string;
  source: string;
  event_time?: number | null;
  source_event_type?: string | null;
  raw_ref?: Json | null;
  data?: Json;
}

/** Conversation of the event. */
export interface ConversationContext {
  conversation_id?: string | null;
  thread_id?: string | null;
  launcher_type?: string | null;
  launcher_id?: string | null;
  sender_id?: string | null;
  bot_id?: string | null;
  workspace_id?: string | null;
  session_id?: string | null;
}

/** Model of the grant, and the operations granted on it. */
export interface ModelResource {
  model_id: string;
  model_type?: string | null;
  provider?: string | null;
  operations?: string[];
  /** Empty or absent: unknown. */
  input_modalities?: ("text" | "image")[];
}

/** Tool of the grant. `parameters` is a JSON Schema. Treat an unknown `effect` as a write. */
export interface ToolResource {
  tool_name: string;
  tool_type?: string | null;
  description?: string | null;
  operations?: string[];
  parameters?: Json | null;
  source?: string | null;
  effect?: "read" | "write" | "irreversible" | null;
  idempotent?: boolean | null;
  effect_source?: "operator" | "server" | null;
  /** `ask`: a call waits for an approval. */
  approval?: "ask" | null;
}

/** Knowledge base of the grant. */
export interface KnowledgeBaseResource {
  kb_id: string;
  kb_name?: string | null;
  kb_type?: string | null;
  operations?: string[];
}

/** Resources that the run may use. */
export interface AgentResources {
  models?: ModelResource[];
  tools?: ToolResource[];
  knowledge_bases?: KnowledgeBaseResource[];
  skills?: Json[];
  agents?: Json[];
  files?: Json[];
  storage?: Json;
  platform_capabilities?: Json;
}

/** Host API calls that the run may make. */
export interface AvailableApis {
  prompt_get?: boolean;
  history_page?: boolean;
  history_search?: boolean;
  event_get?: boolean;
  event_page?: boolean;
  artifact_metadata?: boolean;
  artifact_read?: boolean;
  state?: boolean;
  storage?: boolean;
  steering_pull?: boolean;
  run_get?: boolean;
  run_list?: boolean;
  run_events_page?: boolean;
  run_cancel?: boolean;
  run_append_result?: boolean;
  run_finalize?: boolean;
  child_runs?: boolean;
}

/** Parts of the context that were left out, and the calls that return them. */
export interface ContextAccess {
  conversation_id?: string | null;
  thread_id?: string | null;
  latest_cursor?: string | null;
  event_seq?: number | null;
  transcript_seq?: number | null;
  has_history_before?: boolean;
  inline_policy?: Json;
  available_apis?: AvailableApis;
}

/** Checkpoint of a run whose earlier runner process was lost. `after`: last ledger event that stays; 0 for none. */
export interface RunResume {
  checkpoint: unknown;
  after: number;
}

/** Results of an ended run. The run begins after them. They have no `message.delta`. */
export interface RetryOrigin {
  run_id: string;
  after: number;
  results: RunEvent[];
}

/**
 * Execution data of the run. `deadline_at` is in epoch seconds; `metadata.limits` has the limits of the run. `from` has
 * the results after which a retry begins.
 */
export interface AgentRuntimeContext {
  host?: string;
  protocol_version?: string;
  langbot_version?: string | null;
  trace_id?: string | null;
  deadline_at?: number | null;
  locale?: string | null;
  timezone?: string | null;
  static_refs?: Json;
  resume?: RunResume | null;
  from?: RetryOrigin | null;
  metadata?: Json;
}

/** Context of a run: event, grant, state, configuration. */
export interface AgentRunContext {
  run_id: string;
  trigger: Json;
  event: AgentEventContext;
  input: AgentInput;
  delivery: Json;
  resources: AgentResources;
  runtime: AgentRuntimeContext;
  conversation?: ConversationContext | null;
  actor?: ActorContext | null;
  subject?: SubjectContext | null;
  context?: ContextAccess;
  state?: Partial<Record<StateScope, Json>>;
  variables?: Json;
  config?: Json;
  adapter?: Json | null;
  metadata?: Json;
}

/** Address and token of the host API. `token_expires_at` is in epoch seconds. */
export interface HostAccess {
  base_url: string;
  token: string;
  token_expires_at: number;
}

/** Body of `POST /runs`, the request that starts a run. */
export interface AgentRunRequest {
  runner_id: string;
  runner_name: string;
  context: AgentRunContext;
  host: HostAccess;
}

/** Body of `POST /runs/{run_id}/resume`. `after` is the sequence of the last result that the gateway has stored. */
export interface ResumeRequest {
  run_id: string;
  runner_id: string;
  attempt: number;
  after?: number | null;
  host: HostAccess;
}

/** Manifest of a runner: identity, capabilities, permissions, configuration form. */
export interface AgentRunnerManifest {
  id: string;
  name: string;
  label: Record<string, string>;
  protocol_version?: string;
  description?: Record<string, string> | null;
  capabilities?: Capabilities;
  permissions?: Permissions;
  config_schema?: Json[];
  resume_within_seconds?: number | null;
  component_kind?: string | null;
  usages?: string[];
  supported_event_patterns?: string[];
  context?: Json;
  metadata?: Json;
}

/** Passage of a knowledge base. `content` has the form of a message's content; a smaller `distance` is closer. */
export interface RetrievalResultEntry {
  id: string;
  content: ContentElement[];
  metadata: Json;
  distance: number;
  score?: number | null;
}
