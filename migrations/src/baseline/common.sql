-- Tables of both databases. Ids and JSON are text, times are epoch milliseconds.
-- `sqlite.sql` and `postgres.sql` have the tables that differ.

-- --- workspaces and keys ---

CREATE TABLE workspaces (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, created_at BIGINT NOT NULL);
INSERT INTO workspaces (id, name, created_at) VALUES ('default', 'default', 0);

-- `agents`: JSON list of the ids that the key is restricted to. NULL: all agents of the workspace.
CREATE TABLE api_keys (
    id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL REFERENCES workspaces (id),
    name TEXT NOT NULL, role TEXT NOT NULL, prefix TEXT NOT NULL UNIQUE, hash TEXT NOT NULL,
    created_at BIGINT NOT NULL, revoked_at BIGINT, expires_at BIGINT, last_used_at BIGINT, agents TEXT);

CREATE TABLE signing_keys (
    kid TEXT PRIMARY KEY, purpose TEXT NOT NULL, secret TEXT NOT NULL,
    created_at BIGINT NOT NULL, sign_until BIGINT, verify_until BIGINT);

-- Links to the stream of one run, for browsers.
CREATE TABLE stream_links (
    token_sha256 TEXT NOT NULL PRIMARY KEY, workspace_id TEXT NOT NULL, run_id TEXT NOT NULL,
    api_key_id TEXT NOT NULL, expires_at BIGINT NOT NULL, opened_at BIGINT);
CREATE INDEX stream_links_expired ON stream_links (expires_at);

-- --- endpoints, runners, agents ---

-- `next_check_at` is 0 for an endpoint that is due at once. `max_runs`: maximum concurrent runs.
CREATE TABLE runner_endpoints (
    id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL REFERENCES workspaces (id),
    name TEXT NOT NULL, origin TEXT NOT NULL, enabled BOOLEAN NOT NULL, base_url TEXT NOT NULL,
    mode TEXT NOT NULL, delta_mode TEXT NOT NULL, secret TEXT NOT NULL, headers TEXT NOT NULL,
    manifests TEXT, health TEXT NOT NULL, health_reason TEXT, findings TEXT NOT NULL,
    discovered_at BIGINT, version BIGINT NOT NULL, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL,
    next_check_at BIGINT NOT NULL DEFAULT 0, asked_at BIGINT NOT NULL DEFAULT 0, max_runs BIGINT,
    UNIQUE (workspace_id, name));
CREATE INDEX runner_endpoints_due ON runner_endpoints (enabled, next_check_at);

-- Results of checks.
CREATE TABLE endpoint_health (
    endpoint_id TEXT NOT NULL, n BIGINT NOT NULL, at BIGINT NOT NULL, health TEXT NOT NULL,
    reason TEXT, latency_ms BIGINT, accepted BIGINT NOT NULL, incompatible BIGINT NOT NULL,
    rejected BIGINT NOT NULL, added BIGINT NOT NULL, changed BIGINT NOT NULL, removed BIGINT NOT NULL,
    PRIMARY KEY (endpoint_id, n));

CREATE TABLE runners (
    workspace_id TEXT NOT NULL REFERENCES workspaces (id), runner_id TEXT NOT NULL,
    endpoint_id TEXT NOT NULL, status TEXT NOT NULL, reason TEXT, manifest TEXT NOT NULL,
    manifest_sha256 TEXT NOT NULL, seen_at BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, runner_id));

-- `refused`: faults that disable an agent of the configuration, found by its runner's schema.
CREATE TABLE agents (
    id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL REFERENCES workspaces (id),
    name TEXT NOT NULL, origin TEXT NOT NULL, enabled BOOLEAN NOT NULL, priority BIGINT NOT NULL,
    scope_kind TEXT NOT NULL, scope_bot TEXT NOT NULL, scope_conversation TEXT NOT NULL,
    runner_id TEXT NOT NULL, spec TEXT NOT NULL, version BIGINT NOT NULL,
    created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, refused TEXT,
    UNIQUE (workspace_id, name));
CREATE INDEX agents_enabled ON agents (workspace_id, enabled);
CREATE INDEX agents_runner ON agents (workspace_id, runner_id);

-- Skills that runs registered for later runs of their agent.
CREATE TABLE agent_skills (
    agent_id TEXT NOT NULL, skill_name TEXT NOT NULL, workspace_id TEXT NOT NULL,
    description TEXT NOT NULL, content TEXT NOT NULL, files TEXT NOT NULL, sha256 TEXT NOT NULL,
    version BIGINT NOT NULL, run_id TEXT NOT NULL, registered_at BIGINT NOT NULL,
    PRIMARY KEY (agent_id, skill_name));
CREATE INDEX agent_skills_workspace ON agent_skills (workspace_id);

-- --- conversations and events ---

-- Absent parts of an identity are '', because NULLs are never equal in a unique index.
CREATE TABLE conversations (
    key TEXT PRIMARY KEY, workspace_id TEXT NOT NULL REFERENCES workspaces (id),
    bot_id TEXT NOT NULL, conversation_id TEXT NOT NULL, thread_id TEXT NOT NULL,
    last_event_seq BIGINT NOT NULL, last_transcript_seq BIGINT NOT NULL, version BIGINT NOT NULL,
    UNIQUE (workspace_id, bot_id, conversation_id, thread_id));
-- Filters of runs, events and questions name neither bot nor thread.
CREATE INDEX conversations_by_id ON conversations (workspace_id, conversation_id);

-- For agents with `conversation_idle_seconds`.
CREATE TABLE conversation_generations (
    conversation_key TEXT NOT NULL, agent_id TEXT NOT NULL, events_after BIGINT NOT NULL,
    number BIGINT NOT NULL, transcript_after BIGINT NOT NULL, begun_at BIGINT NOT NULL,
    PRIMARY KEY (conversation_key, agent_id));

-- The unique index of `dedupe_key` differs.
CREATE TABLE events (
    workspace_id TEXT NOT NULL REFERENCES workspaces (id), event_id TEXT NOT NULL,
    dedupe_key TEXT NOT NULL, body_sha256 TEXT NOT NULL, answer TEXT NOT NULL,
    event_type TEXT NOT NULL, source TEXT NOT NULL, bot_id TEXT NOT NULL,
    conversation_key TEXT, event_seq BIGINT, envelope TEXT NOT NULL, steered_into TEXT,
    received_at BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, event_id));
-- The event id breaks ties of equal times, so a page continues without gaps. Only lists use the condition:
-- PostgreSQL may plan a lookup on an empty table with any index that starts with the workspace, and keeps the plan.
CREATE INDEX events_newest ON events (workspace_id, received_at, event_id) WHERE received_at >= 0;
CREATE INDEX events_talk ON events (conversation_key, received_at, event_id);

-- A separate table: lists and lookups of events never read a payload.
CREATE TABLE raw_payloads (
    workspace_id TEXT NOT NULL, event_id TEXT NOT NULL, payload TEXT NOT NULL, created_at BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, event_id));

-- Events absorbed by an active run, until it pulls them. `n` orders the pulls; the unique key makes a repeated
-- absorption harmless.
CREATE TABLE steering_items (
    run_id TEXT NOT NULL, n BIGINT NOT NULL, event_id TEXT NOT NULL, status TEXT NOT NULL, at BIGINT NOT NULL,
    PRIMARY KEY (run_id, n), UNIQUE (run_id, event_id));

-- --- runs ---

-- A run is live while `finished_at` is NULL. Columns that a live run changes are in no index.
-- `posted_by`: the API key that posted the event. `pruned_at`: retention deleted the ledger.
CREATE TABLE runs (
    id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL REFERENCES workspaces (id),
    event_id TEXT NOT NULL, agent_id TEXT NOT NULL, agent_version BIGINT NOT NULL,
    runner_id TEXT NOT NULL, endpoint_id TEXT NOT NULL, conversation_key TEXT,
    status TEXT NOT NULL, status_reason TEXT, attempt BIGINT NOT NULL, lease_owner TEXT,
    lease_epoch BIGINT NOT NULL, lease_expires_at BIGINT, last_sequence BIGINT NOT NULL,
    deadline_at BIGINT NOT NULL, cancel_requested_at BIGINT, snapshot_sha256 TEXT NOT NULL,
    output TEXT, error TEXT, usage TEXT, metadata TEXT NOT NULL,
    created_at BIGINT NOT NULL, started_at BIGINT, finished_at BIGINT, pruned_at BIGINT,
    trace_parent TEXT, parent_run_id TEXT, retry_of TEXT, posted_by TEXT);
-- Lists in display order. Each ends in the key of the order, so a page needs no sort.
CREATE INDEX runs_newest ON runs (workspace_id, created_at, id);
CREATE INDEX runs_of_agent ON runs (workspace_id, agent_id, created_at, id);
CREATE INDEX runs_live_newest ON runs (workspace_id, created_at, id) WHERE finished_at IS NULL;
CREATE INDEX runs_conversation ON runs (conversation_key, created_at);
CREATE INDEX runs_children ON runs (parent_run_id, created_at, id) WHERE parent_run_id IS NOT NULL;
-- Live runs only, so the cost of a count does not grow with the history.
CREATE INDEX runs_live ON runs (workspace_id, endpoint_id, finished_at) WHERE finished_at IS NULL;
CREATE INDEX runs_live_conversation ON runs (conversation_key)
    WHERE finished_at IS NULL AND conversation_key IS NOT NULL;
CREATE INDEX runs_live_children ON runs (parent_run_id) WHERE parent_run_id IS NOT NULL AND finished_at IS NULL;
-- Always small: it contains a run from the cancel request to its end.
CREATE INDEX runs_asked_to_end ON runs (cancel_requested_at)
    WHERE cancel_requested_at IS NOT NULL AND finished_at IS NULL;
-- Pruned runs leave the index, so the next batch is found without a scan.
CREATE INDEX runs_to_prune ON runs (finished_at) WHERE pruned_at IS NULL AND finished_at IS NOT NULL;
-- Refuses a second retry, even of another replica.
CREATE UNIQUE INDEX runs_retries ON runs (retry_of) WHERE retry_of IS NOT NULL;

CREATE TABLE run_attempts (
    run_id TEXT NOT NULL, attempt BIGINT NOT NULL, intent_at BIGINT NOT NULL,
    context TEXT NOT NULL, outcome TEXT, http_status BIGINT,
    PRIMARY KEY (run_id, attempt));

-- The ledger of a run.
CREATE TABLE run_segments (
    run_id TEXT NOT NULL, first_sequence BIGINT NOT NULL, last_sequence BIGINT NOT NULL,
    payload TEXT NOT NULL, created_at BIGINT NOT NULL,
    PRIMARY KEY (run_id, first_sequence));

CREATE TABLE run_rejections (
    run_id TEXT NOT NULL, n BIGINT NOT NULL, reason TEXT NOT NULL, runner_sequence TEXT,
    bytes BIGINT NOT NULL, excerpt TEXT NOT NULL, at BIGINT NOT NULL, message TEXT,
    PRIMARY KEY (run_id, n));

-- Async runs. `lease_expires_at`: heartbeat lease of the runner. `judged_through`: number of the last appended
-- result in the ledger, from which a new owner resumes; -1: not recorded. `is_closed`: the owner ends the run.
CREATE TABLE run_deferrals (
    run_id TEXT PRIMARY KEY, attempt BIGINT NOT NULL, accepted_through BIGINT NOT NULL,
    bytes BIGINT NOT NULL, lease_expires_at BIGINT NOT NULL,
    judged_through BIGINT NOT NULL DEFAULT -1, is_closed BOOLEAN NOT NULL DEFAULT FALSE);

-- Appended results in the runner's numbering, until the run's owner has judged them. `digests` refuse another result
-- with an accepted number.
CREATE TABLE run_appends (
    run_id TEXT NOT NULL, first_sequence BIGINT NOT NULL, last_sequence BIGINT NOT NULL,
    payload TEXT NOT NULL, digests TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (run_id, first_sequence));

-- Text parts shared by many runs, stored once, by hash: schemas of granted tools, specifications of agents.
-- `is_kept`: a snapshot or specification of a run uses the part, so it stays with the run.
CREATE TABLE shared_parts (
    sha256 TEXT PRIMARY KEY, text TEXT NOT NULL, is_kept BOOLEAN NOT NULL, created_at BIGINT NOT NULL);
CREATE INDEX shared_parts_loose ON shared_parts (created_at) WHERE NOT is_kept;

-- Contexts that use a part, pruned with the ledger of their runs.
CREATE TABLE part_uses (
    run_id TEXT NOT NULL, sha256 TEXT NOT NULL, PRIMARY KEY (run_id, sha256));
CREATE INDEX part_uses_part ON part_uses (sha256);

-- --- questions and tool calls ---

-- The token is stored as a hash only: a reader of the database cannot answer a question.
CREATE TABLE interactions (
    id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL, run_id TEXT NOT NULL, sequence BIGINT NOT NULL,
    interaction_id TEXT NOT NULL, request TEXT NOT NULL, token_sha256 TEXT, expires_at BIGINT NOT NULL,
    asked_at BIGINT NOT NULL, is_awaited BOOLEAN NOT NULL DEFAULT FALSE, given_answer TEXT, given_sha256 TEXT,
    given_at BIGINT, closed_at BIGINT);
CREATE UNIQUE INDEX interactions_token ON interactions (token_sha256);
CREATE UNIQUE INDEX interactions_run ON interactions (run_id, interaction_id);
CREATE INDEX interactions_workspace ON interactions (workspace_id, id);

-- Tool calls with an idempotency key: the intent before the call, the result after it. A call with `kept_until` is
-- shared by the runs of a conversation.
CREATE TABLE tool_calls (
    run_id TEXT NOT NULL, key TEXT NOT NULL, call_id TEXT NOT NULL, request_sha256 TEXT NOT NULL,
    owner TEXT NOT NULL, expires_at BIGINT NOT NULL, result TEXT, at BIGINT NOT NULL, kept_until BIGINT,
    PRIMARY KEY (run_id, key));
CREATE INDEX tool_calls_kept ON tool_calls (kept_until) WHERE kept_until IS NOT NULL;

-- --- transcripts and state ---

-- `terms_version`: version of the item's index terms; 0: not indexed.
CREATE TABLE transcript_items (
    conversation_key TEXT NOT NULL, seq BIGINT NOT NULL, id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL, event_id TEXT NOT NULL, role TEXT NOT NULL, item_type TEXT NOT NULL,
    content TEXT, content_json TEXT, attachment_refs TEXT NOT NULL, created_at BIGINT NOT NULL,
    terms_version BIGINT NOT NULL DEFAULT 0, author TEXT,
    PRIMARY KEY (conversation_key, seq));
CREATE INDEX transcript_unindexed ON transcript_items (conversation_key, seq) WHERE terms_version = 0;

-- Run and agent of an entry are those that created its key, for shares of a scope's keys.
CREATE TABLE state_entries (
    scope TEXT NOT NULL, scope_sha256 TEXT NOT NULL, key TEXT NOT NULL, workspace_id TEXT NOT NULL,
    value TEXT NOT NULL, version BIGINT NOT NULL, run_id TEXT NOT NULL, updated_at BIGINT NOT NULL,
    created_run_id TEXT, agent_id TEXT, summary TEXT, lease_run_id TEXT, lease_expires_at BIGINT,
    PRIMARY KEY (scope, scope_sha256, key));

-- Larger values of an entry, each written with a version of it.
CREATE TABLE state_bodies (
    scope TEXT NOT NULL, scope_sha256 TEXT NOT NULL, key TEXT NOT NULL, body_id TEXT NOT NULL,
    bytes BIGINT NOT NULL, agent_id TEXT, value TEXT NOT NULL,
    PRIMARY KEY (scope, scope_sha256, key, body_id));
-- Covering index: each write of bodies sums those of a scope.
CREATE INDEX state_bodies_usage ON state_bodies (scope, scope_sha256, bytes);
CREATE INDEX state_bodies_agent ON state_bodies (agent_id);

-- Highest deleted version of each scope. New entries start above it, so a reader of an old version cannot overwrite
-- them. One row for each scope: a row for each deleted key would grow without a bound.
CREATE TABLE state_deleted (
    scope TEXT NOT NULL, scope_sha256 TEXT NOT NULL, version BIGINT NOT NULL,
    PRIMARY KEY (scope, scope_sha256));

-- --- storage and artifacts ---

-- A name points at a content, stored in `storage_chunks`.
CREATE TABLE storage_blobs (
    workspace_id TEXT NOT NULL, area TEXT NOT NULL, owner TEXT NOT NULL, key TEXT NOT NULL,
    content_id TEXT NOT NULL, size BIGINT NOT NULL, sha256 TEXT NOT NULL, content_type TEXT NOT NULL,
    run_id TEXT NOT NULL, updated_at BIGINT NOT NULL, agent_id TEXT,
    PRIMARY KEY (workspace_id, area, owner, key));
-- Covering index: each upload sums the usage of an owner.
CREATE INDEX storage_blobs_usage ON storage_blobs (workspace_id, area, owner, size, key);

-- Contents without a name: uploads in progress, and replaced contents that may still have readers.
CREATE TABLE storage_garbage (
    content_id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL, area TEXT NOT NULL, owner TEXT NOT NULL,
    size BIGINT NOT NULL, expires_at BIGINT NOT NULL, run_id TEXT, agent_id TEXT);
CREATE INDEX storage_garbage_area ON storage_garbage (workspace_id, area, owner);
CREATE INDEX storage_garbage_expiry ON storage_garbage (expires_at);

-- Metadata of files with their bytes in a blob store. A row is created before its bytes and deleted after them.
CREATE TABLE artifacts (
    id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL, origin TEXT NOT NULL, status TEXT NOT NULL,
    run_id TEXT, runner_id TEXT, conversation_key TEXT, event_id TEXT, sequence BIGINT,
    name TEXT NOT NULL, mime_type TEXT NOT NULL, size BIGINT NOT NULL, sha256 TEXT NOT NULL,
    place TEXT NOT NULL, created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL, agent_id TEXT);
-- Covering indexes: each upload sums the usage of a workspace and of an agent.
CREATE INDEX artifacts_usage ON artifacts (workspace_id, size);
CREATE INDEX artifacts_agent_usage ON artifacts (workspace_id, agent_id, size);
CREATE INDEX artifacts_expiry ON artifacts (expires_at);
CREATE INDEX artifacts_run ON artifacts (run_id);

-- --- knowledge ---

-- `version` increases with every change to search results.
CREATE TABLE knowledge_bases (
    workspace_id TEXT NOT NULL, kb_id TEXT NOT NULL, version BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, kb_id));

CREATE TABLE knowledge_numbers (
    name TEXT PRIMARY KEY, last BIGINT NOT NULL);
INSERT INTO knowledge_numbers (name, last) VALUES ('content', 0);

-- `content`: the indexed version that searches use, so a replacement is atomic. `pending`: the next one.
CREATE TABLE knowledge_documents (
    workspace_id TEXT NOT NULL, kb_id TEXT NOT NULL, document_id TEXT NOT NULL,
    name TEXT NOT NULL, mime_type TEXT NOT NULL, metadata TEXT NOT NULL, sha256 TEXT NOT NULL,
    bytes BIGINT NOT NULL, characters BIGINT NOT NULL, chunks BIGINT NOT NULL, units BIGINT NOT NULL,
    content BIGINT NOT NULL, vector_model TEXT, chunk_chars BIGINT NOT NULL, chunk_overlap BIGINT NOT NULL,
    status TEXT NOT NULL, error TEXT, pending BIGINT NOT NULL, pending_by TEXT NOT NULL,
    pending_done BIGINT NOT NULL, pending_all BIGINT NOT NULL, pending_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, kb_id, document_id));
CREATE INDEX knowledge_documents_content ON knowledge_documents (content) WHERE content > 0;
CREATE INDEX knowledge_documents_pending ON knowledge_documents (pending_at) WHERE pending > 0;

-- Chunks of a content have the ids `content * 32768 + n`, also in `knowledge_vectors` and `knowledge_terms`.
CREATE TABLE knowledge_chunks (
    id BIGINT PRIMARY KEY, text TEXT NOT NULL, start_at BIGINT NOT NULL, end_at BIGINT NOT NULL,
    heading TEXT, units BIGINT NOT NULL);

CREATE TABLE knowledge_metadata (
    content BIGINT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (content, name, value));

-- Unused contents.
CREATE TABLE knowledge_garbage (
    content BIGINT PRIMARY KEY);

-- --- usage and budgets ---

-- Each call with its reservation and actual usage. Cached and reasoning tokens are within prompt and completion tokens.
CREATE TABLE usage_calls (
    id TEXT NOT NULL PRIMARY KEY, workspace_id TEXT NOT NULL, run_id TEXT NOT NULL, kind TEXT NOT NULL,
    resource TEXT NOT NULL, outcome TEXT NOT NULL, prompt_tokens BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL, is_estimate BIGINT NOT NULL, cost_micros BIGINT NOT NULL,
    wall_ms BIGINT NOT NULL, at BIGINT NOT NULL,
    cache_read_tokens BIGINT NOT NULL DEFAULT 0, cache_write_5m_tokens BIGINT NOT NULL DEFAULT 0,
    cache_write_1h_tokens BIGINT NOT NULL DEFAULT 0, reasoning_tokens BIGINT NOT NULL DEFAULT 0);
CREATE INDEX usage_calls_run ON usage_calls (run_id, id);

-- Sums: a check reads one row, not all calls of a window.
CREATE TABLE budget_usage (
    budget TEXT NOT NULL, subject TEXT NOT NULL, window_start BIGINT NOT NULL, calls BIGINT NOT NULL,
    tokens BIGINT NOT NULL, cost_micros BIGINT NOT NULL, wall_ms BIGINT NOT NULL,
    PRIMARY KEY (budget, subject, window_start));
-- Sweep and retention delete by window and by run: neither is a prefix of the primary key.
CREATE INDEX budget_usage_window ON budget_usage (window_start);
CREATE INDEX budget_usage_subject ON budget_usage (subject);

-- Calls in progress. One row for each budget and subject of a call: settling subtracts exactly what was reserved.
-- The process of the call holds the lease; when it dies, the reservation is released before the run ends.
CREATE TABLE budget_reservations (
    call_id TEXT NOT NULL, budget TEXT NOT NULL, subject TEXT NOT NULL, window_start BIGINT NOT NULL,
    run_id TEXT NOT NULL, calls BIGINT NOT NULL, tokens BIGINT NOT NULL, cost_micros BIGINT NOT NULL,
    wall_ms BIGINT NOT NULL, lease_expires_at BIGINT,
    PRIMARY KEY (call_id, budget, subject));
