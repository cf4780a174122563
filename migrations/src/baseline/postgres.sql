-- Tables of PostgreSQL that differ from those of SQLite.

-- Starts with the key: other indexes start with the workspace, and a plan that PostgreSQL made with one of them for an
-- empty table would read the entire workspace later.
CREATE UNIQUE INDEX events_by_key ON events (dedupe_key, workspace_id);

-- PostgreSQL stores large values out of line itself.
ALTER TABLE runs ADD COLUMN agent_spec TEXT NOT NULL, ADD COLUMN snapshot TEXT NOT NULL;

-- `outcome` is NULL during the call. `calls`: number of denied calls in one entry.
CREATE TABLE audit_entries (
    id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL, run_id TEXT NOT NULL, action TEXT NOT NULL,
    resource TEXT NOT NULL, operation TEXT NOT NULL, decision TEXT NOT NULL, rule TEXT NOT NULL,
    bytes BIGINT NOT NULL, at BIGINT NOT NULL, outcome TEXT, duration_ms BIGINT,
    calls BIGINT NOT NULL DEFAULT 1);
CREATE INDEX audit_run ON audit_entries (run_id, id);

CREATE TABLE storage_chunks (
    content_id TEXT NOT NULL, n BIGINT NOT NULL, bytes BYTEA NOT NULL, PRIMARY KEY (content_id, n));
CREATE TABLE knowledge_vectors (
    id BIGINT PRIMARY KEY, vector BYTEA NOT NULL);

-- The full-text indexes store opaque terms, no text and no positions: readers check the item or chunk of a row.
CREATE TABLE transcript_terms (
    conversation_key TEXT NOT NULL, seq BIGINT NOT NULL, terms TSVECTOR NOT NULL,
    PRIMARY KEY (conversation_key, seq));
CREATE INDEX transcript_terms_found ON transcript_terms USING gin (terms);
CREATE TABLE knowledge_terms (
    rowid BIGINT PRIMARY KEY, terms TSVECTOR NOT NULL);
CREATE INDEX knowledge_terms_found ON knowledge_terms USING gin (terms);

-- Keys of lists sort in byte order, regardless of the server's collation.
ALTER TABLE state_entries ALTER COLUMN key TYPE TEXT COLLATE "C";
ALTER TABLE storage_blobs ALTER COLUMN key TYPE TEXT COLLATE "C";
ALTER TABLE knowledge_documents ALTER COLUMN document_id TYPE TEXT COLLATE "C";
