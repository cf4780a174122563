/** The request of a run and the manifest of a runner, as `openapi/runner.json` defines them. */

import type { ActorContext, AgentInput, ContentElement, Json, StateScope, SubjectContext } from "../types.js";

/** What a runner may ask of the host API. The operator's agent narrows it. */
export interface Permissions {
  models?: readonly ("invoke" | "stream" | "rerank" | "count_tokens")[];
  tools?: readonly ("detail" | "call")[];
  knowledge_bases?: readonly ("list" | "retrieve")[];
  history?: readonly ("page" | "search")[];
  events?: readonly ("get" | "page")[];
  artifacts?: readonly ("metadata" | "read" | "create")[];
  storage?: readonly ("plugin" | "workspace" | "binding")[];
  files?: readonly ("config" | "knowledge")[];
  interactions?: readonly "request"[];
  agents?: readonly "call"[];
  platform_api?: readonly string[];
}

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
}

export interface AgentEventContext {
  event_id: string;
  event_type: string;
  source: string;
  event_time?: number | null;
  source_event_type?: string | null;
  raw_ref?: Json | null;
  data?: Json;
}

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

export interface ModelResource {
  model_id: string;
  model_type?: string | null;
  provider?: string | null;
  operations?: string[];
}

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
}

export interface KnowledgeBaseResource {
  kb_id: string;
  kb_name?: string | null;
  kb_type?: string | null;
  operations?: string[];
}

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

export interface AgentRuntimeContext {
  host?: string;
  protocol_version?: string;
  langbot_version?: string | null;
  trace_id?: string | null;
  deadline_at?: number | null;
  locale?: string | null;
  timezone?: string | null;
  static_refs?: Json;
  metadata?: Json;
}

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

export interface HostAccess {
  base_url: string;
  token: string;
  token_expires_at: number;
}

export interface AgentRunRequest {
  runner_id: string;
  runner_name: string;
  context: AgentRunContext;
  host: HostAccess;
}

export interface AgentRunnerManifest {
  id: string;
  name: string;
  label: Record<string, string>;
  protocol_version?: string;
  description?: Record<string, string> | null;
  capabilities?: Capabilities;
  permissions?: Permissions;
  config_schema?: Json[];
  component_kind?: string | null;
  usages?: string[];
  supported_event_patterns?: string[];
  context?: Json;
  metadata?: Json;
}

/** A passage of a knowledge base. `content` has the form of a message's content. */
export interface RetrievalResultEntry {
  id: string;
  content: ContentElement[];
  metadata: Json;
  distance: number;
  score?: number | null;
}
