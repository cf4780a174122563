-- Tables of SQLite that differ from those of PostgreSQL.

-- SQLite plans each statement anew, so the order of the columns is free.
CREATE UNIQUE INDEX events_by_key ON events (workspace_id, dedupe_key);

-- SQLite would rewrite large values on each change of a run, so they have a table.
CREATE TABLE run_snapshots (
    run_id TEXT PRIMARY KEY, agent_spec TEXT NOT NULL, snapshot TEXT NOT NULL) WITHOUT ROWID;

-- Clustered by run: a row is written for each host call, and read by its run. `outcome` is NULL during the call.
-- `calls`: number of denied calls in one entry.
CREATE TABLE audit_entries (
    id TEXT NOT NULL, workspace_id TEXT NOT NULL, run_id TEXT NOT NULL, action TEXT NOT NULL,
    resource TEXT NOT NULL, operation TEXT NOT NULL, decision TEXT NOT NULL, rule TEXT NOT NULL,
    bytes BIGINT NOT NULL, at BIGINT NOT NULL, outcome TEXT, duration_ms BIGINT,
    calls BIGINT NOT NULL DEFAULT 1,
    PRIMARY KEY (run_id, id)) WITHOUT ROWID;

CREATE TABLE storage_chunks (
    content_id TEXT NOT NULL, n BIGINT NOT NULL, bytes BLOB NOT NULL, PRIMARY KEY (content_id, n));
CREATE TABLE knowledge_vectors (
    id BIGINT PRIMARY KEY, vector BLOB NOT NULL);

-- The full-text indexes store opaque terms, no text and no positions: readers check the item or chunk of a row.
CREATE VIRTUAL TABLE transcript_terms USING fts5(
    terms, conversation_key UNINDEXED, seq UNINDEXED,
    content='', contentless_unindexed=1, detail=none, columnsize=0, tokenize='ascii');
CREATE VIRTUAL TABLE knowledge_terms USING fts5(
    terms, content='', contentless_delete=1, detail=none, tokenize='ascii');
