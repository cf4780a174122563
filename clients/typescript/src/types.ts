/**
 * Wire types of the API, as `openapi/gateway.json` and `openapi/runner.json` define them. Responses may have more
 * fields than are listed here.
 */

/** JSON object. */
export type Json = Record<string, unknown>;
/** Owner of a state entry. */
export type StateScope = "conversation" | "actor" | "subject" | "runner" | "binding";
/** Status of a run. The last four are terminal. */
export type RunStatus = "created" | "queued" | "claimed" | "running" | "completed" | "failed" | "cancelled" | "timeout";
/** Task result of a completed run. */
export type RunOutcome = "ok" | "not_done" | "need_input";
/** Value type of a form field. */
export type InteractionFieldType = "text" | "textarea" | "select" | "multiselect" | "number" | "boolean" | "file";

/** Address of an image: `https:`, `data:` or `artifact:ID`. */
export interface ImageUrl {
  url: string;
}

/** Part of a message: `type` is `text`, `image_url`, `image_base64`, `file_url`, `file_base64` or free. */
export interface ContentElement {
  type: string;
  text?: string | null;
  image_url?: ImageUrl | null;
  image_base64?: string | null;
  file_url?: string | null;
  file_base64?: string | null;
  file_name?: string | null;
}

/** Name of a tool and its arguments, a JSON object as text. */
export interface FunctionCall {
  name: string;
  arguments: string;
}

/** Tool call of a model. Send `provider_specific_fields` back unchanged with the results. */
export interface ToolCall {
  id: string;
  type: string;
  function: FunctionCall;
  provider_specific_fields?: Json | null;
}

/** Message of a conversation. `role` is `assistant`, `user`, `system` or `tool`. */
export interface Message {
  role: string;
  content?: string | ContentElement[] | null;
  name?: string | null;
  tool_calls?: ToolCall[] | null;
  tool_call_id?: string | null;
  resp_message_id?: string | null;
  provider_specific_fields?: Json | null;
}

/** Fragment of a message. `content` is an increment; `all_content` is the complete text so far, if it is set. */
export interface MessageChunk {
  role: string;
  content?: string | ContentElement[] | null;
  all_content?: string | null;
  name?: string | null;
  tool_calls?: ToolCall[] | null;
  tool_call_id?: string | null;
  resp_message_id?: string | null;
  is_final?: boolean;
  msg_sequence?: number | null;
  provider_specific_fields?: Json | null;
}

/** Token counts of model calls. An absent count is unknown, not 0. */
export interface LlmTokenUsage {
  prompt_tokens?: number | null;
  completion_tokens?: number | null;
  total_tokens?: number | null;
}

/** Tool that is offered to a model. `parameters` is a JSON Schema. */
export interface LlmTool {
  name: string;
  description: string;
  parameters: Json;
  human_desc?: string;
}

/** Option of a `select` or `multiselect` field. */
export interface InteractionOption {
  value: string;
  label: string;
  description?: string | null;
}

/** Form field of a question. `id` is the key of its value in the answer. */
export interface InteractionField {
  id: string;
  label: string;
  type: InteractionFieldType;
  required?: boolean;
  options?: InteractionOption[];
  placeholder?: string | null;
  default?: unknown;
}

/** Button of a question. */
export interface InteractionAction {
  id: string;
  label: string;
  style?: "default" | "primary" | "danger";
}

/**
 * Question of a runner. `expires_at` is in epoch seconds, by default in 30 minutes. `fallback_text` is the question as
 * plain text. With `await` the run waits for the answer.
 */
export interface InteractionRequest {
  interaction_id: string;
  title: string;
  fallback_text: string;
  kind?: "form" | "confirmation" | "choice" | "budget";
  description?: string | null;
  fields?: InteractionField[];
  actions?: InteractionAction[];
  expires_at?: number | null;
  await?: boolean;
}

/** Answer to a question: `values` by field id. `submitted_at` is in epoch seconds. */
export interface InteractionSubmission {
  interaction_id: string;
  action_id?: string | null;
  values?: Json;
  submitted_at?: number | null;
}

/** Number of runs of one status. Not `exact`: a lower bound. */
export interface CountOfStatus {
  status: RunStatus;
  count: number;
  exact: boolean;
}

/** Counts of runs. `since`: creation of the oldest counted run, if older runs were not counted. */
export interface CountsByStatus {
  items: CountOfStatus[];
  since?: number | null;
}

/** Groups of a report of use. */
export type UsageGroupBy = "agent" | "model" | "tool" | "knowledge_base";

/** Disjoint token counts. The first four sum to the prompt, the last two to the completion. */
export interface TokensByPrice {
  input: number;
  cache_read: number;
  cache_write_5m: number;
  cache_write_1h: number;
  output: number;
  reasoning: number;
}

/** Sums of calls. A run counts on the day of its first call. `cost` is in the currency of the configured prices. */
export interface UsedByRuns {
  runs: number;
  calls: number;
  prompt_tokens: number;
  completion_tokens: number;
  tokens: TokensByPrice;
  cost: number;
  seconds: number;
}

/** Sums of one day (UTC), which begins at `day`, in epoch seconds. */
export interface UsedOnDay extends UsedByRuns {
  day: number;
}

/** Use of one agent, model, tool or knowledge base. Without an id: that of all others. */
export interface UsageGroup {
  id?: string | null;
  name?: string | null;
  total: UsedByRuns;
  days: UsedOnDay[];
}

/** Use between two times, in epoch seconds. The groups with the highest cost come first. */
export interface UsageReport {
  from: number;
  to: number;
  group_by: UsageGroupBy;
  total: UsedByRuns;
  groups: UsageGroup[];
}

/**
 * Credential or component that made a change or a decision. `kind` is `api_key`, `link`, `event`, `run`, `config` or
 * `gateway`. Keys of role client see no `name`.
 */
export interface Principal {
  kind: string;
  id?: string | null;
  name?: string | null;
}

/** Accepted answer to a question. Texts of fields with a secret name are `***`. */
export interface InteractionAnswer {
  action_id?: string | null;
  values: Json;
  by: Principal;
}

/**
 * Question of a run, as the gateway stores it. Times are in epoch seconds. `id` is the gateway's id,
 * `request.interaction_id` the runner's. `status` is `open`, `submitted`, `expired` or `cancelled`.
 */
export interface Interaction {
  id: string;
  run_id: string;
  sequence: number;
  status: string;
  request: InteractionRequest;
  asked_at: number;
  expires_at: number;
  submitted_at?: number | null;
  answer?: InteractionAnswer | null;
  submitted_event_id?: string | null;
  submitted_run_id?: string | null;
}

/** Token of an actor, for tools that are called on its behalf. */
export interface ActorCredential {
  token: string;
  type?: "access_token" | "id_token" | "jwt";
}

/** Sender of an event. */
export interface ActorContext {
  actor_type: string;
  actor_id?: string | null;
  actor_name?: string | null;
  locale?: string | null;
  timezone?: string | null;
  metadata?: Json;
  credential?: ActorCredential | null;
}

/** State of a question that its run waits for. All states except `open` are final. */
export interface AwaitedInteraction {
  status: "open" | "submitted" | "expired" | "cancelled";
  action_id?: string | null;
  values?: Json | null;
  actor?: ActorContext | null;
}

/** Act of the chat platform. All statuses except `awaiting_approval`, `open` and `claimed` are final. */
export interface PlatformAction {
  id: string;
  run_id: string;
  agent_id: string;
  action: string;
  target: Json;
  payload: Json;
  status: "awaiting_approval" | "open" | "claimed" | "done" | "failed" | "declined" | "expired" | "cancelled";
  created_at: number;
  expires_at: number;
  sequence?: number;
  interaction_id?: string;
  claimed_at?: number;
  finished_at?: number;
  output?: Json;
  error?: PlatformActionError;
  event?: Json;
}

/** Reason for which a platform action was not performed: `unsupported`, or a code of the platform. */
export interface PlatformActionError {
  code: string;
  message: string;
}

/** Claimed platform action. Its result names the `claim_token`, which is secret. */
export interface ClaimedAction {
  action: PlatformAction;
  claim_token: string;
}

/** Wake of an agent. Times are epoch seconds. All statuses except `pending` are final. */
export interface AgentWake {
  key: string;
  at: number;
  status: "pending" | "triggered" | "skipped" | "failed" | "cancelled";
  event_id: string;
  created_at: number;
}

/** File of an event. `artifact_id` of a posted event names an upload; a runner reads it as `id`. `size`: bytes. */
export interface InputAttachment {
  artifact_id?: string;
  id?: string | null;
  ref?: string | null;
  type?: string | null;
  mime_type?: string | null;
  size?: number | null;
  name?: string | null;
  source?: string | null;
  url?: string | null;
  path?: string | null;
  content?: string | null;
}

/** Input of an event: text, parts, files. */
export interface AgentInput {
  text?: string | null;
  contents?: ContentElement[];
  attachments?: InputAttachment[];
  interaction?: InteractionSubmission | null;
}

/** Conversation of an event. Without `conversation_id` the event belongs to none. */
export interface EventConversation {
  conversation_id?: string | null;
  thread_id?: string | null;
  launcher_type?: string | null;
  launcher_id?: string | null;
}

/** Object that an event is about. */
export interface SubjectContext {
  subject_type: string;
  subject_id?: string | null;
  data?: Json;
}

/**
 * Event to post. Only `event_type` is required; `message.received` also needs `input`. `event_id` makes a repeated post
 * harmless: the gateway returns the first result. `event_time` is in epoch seconds.
 */
export interface EventEnvelope {
  event_type: string;
  event_id?: string | null;
  source?: string;
  source_event_type?: string | null;
  event_time?: number | null;
  locale?: string | null;
  timezone?: string | null;
  bot_id?: string | null;
  pipeline_id?: string | null;
  conversation?: EventConversation | null;
  actor?: ActorContext | null;
  subject?: SubjectContext | null;
  input?: AgentInput | null;
  delivery?: Json;
  data?: Json;
  raw?: unknown;
  raw_ref?: Json | null;
}

/**
 * Link to the stream of one run, for a browser: `new EventSource(url)`. The URL has a secret. It opens one stream,
 * before `expires_at` in epoch seconds.
 */
export interface RunStreamLink {
  url: string;
  expires_at: number;
}

/**
 * Result of a posted event.
 *
 * If no agent takes the event, `run_id` is null, `reason` is `no_agent`, and `hint` is a sentence with cause and next
 * step. `steered` is true if a live run absorbed the event: follow that run after `last_sequence`.
 */
export interface EventAccepted {
  event_id: string;
  run_id?: string | null;
  run_url?: string | null;
  status?: RunStatus | null;
  steered?: boolean;
  last_sequence?: number | null;
  reason?: string | null;
  hint?: string | null;
}

/**
 * Run of an event. Times (`…_at`) are in epoch seconds, `duration_ms` is in milliseconds. `output` is the last message.
 * `error` is `{code, message, retryable}` of a run that did not complete. `usage` has token counts. `metadata` counts
 * the results that deviated from the protocol. `retry_of` is the ended run that this run repeats, after its result
 * `retry_from` if that is set; `retried_as` is the run that repeats this one. `input_preview` has at most 200 characters.
 */
export interface AgentRun {
  run_id: string;
  event_id: string;
  agent_id: string;
  runner_id: string;
  workspace_id: string;
  status: RunStatus;
  created_at: number;
  dispatch_attempts: number;
  last_sequence: number;
  metadata: Json;
  agent_name?: string | null;
  input_preview?: string | null;
  duration_ms?: number | null;
  status_reason?: string | null;
  parent_run_id?: string | null;
  retry_of?: string | null;
  retry_from?: number | null;
  retried_as?: string | null;
  conversation_id?: string | null;
  thread_id?: string | null;
  bot_id?: string | null;
  started_at?: number | null;
  finished_at?: number | null;
  deadline_at?: number | null;
  cancel_requested_at?: number | null;
  cancelled_by?: Principal | null;
  output?: Json | null;
  error?: Json | null;
  usage?: Json | null;
  cost?: Json | null;
}

/** File of the gateway. `size` is in bytes, `sha256` in hex; times are in epoch seconds. */
export interface ArtifactMetadata {
  artifact_id: string;
  name: string;
  mime_type: string;
  size: number;
  sha256: string;
  origin: string;
  run_id?: string | null;
  event_id?: string | null;
  created_at?: number | null;
  expires_at?: number | null;
}

/**
 * Conversation and its newest event. `last_event_at` is in epoch seconds. `is_busy` is true while one of its runs is
 * live. `input_preview` has at most 200 characters.
 */
export interface ConversationSummary {
  conversation_id: string;
  event_count: number;
  message_count: number;
  is_busy: boolean;
  last_event_id: string;
  last_event_at: number;
  bot_id?: string | null;
  thread_id?: string | null;
  input_preview?: string | null;
}

/**
 * Message of a conversation's history. `created_at` is in epoch seconds, `seq` counts from 1. `content` has at most
 * 4,000 characters; `content_json` has the complete content.
 */
export interface TranscriptItem {
  transcript_id: string;
  event_id: string;
  role: string;
  item_type: string;
  seq: number;
  created_at: number;
  metadata: Json;
  attachment_refs: Json[];
  run_id?: string | null;
  content?: string | null;
  content_json?: Json | null;
  cursor?: string | null;
}
