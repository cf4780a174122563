//! End-to-end tests of the real binary over HTTP, one theme per file. Fixtures live in `support`.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    unreachable_pub,
    reason = "a test fails by panicking, has tasks and an environment of its own, and has no outside"
)]

#[macro_use]
mod support;

#[path = "e2e/longest.rs"]
mod _longest;

#[path = "e2e/action_graphs.rs"]
mod action_graphs;
#[path = "e2e/advice.rs"]
mod advice;
#[path = "e2e/agents.rs"]
mod agents;
#[path = "e2e/amendments.rs"]
mod amendments;
#[path = "e2e/api_keys.rs"]
mod api_keys;
#[path = "e2e/approvals.rs"]
mod approvals;
#[path = "e2e/artifacts.rs"]
mod artifacts;
#[path = "e2e/assistant.rs"]
mod assistant;
#[path = "e2e/async_runs.rs"]
mod async_runs;
#[path = "e2e/authorization.rs"]
mod authorization;
#[path = "e2e/browsers.rs"]
mod browsers;
#[path = "e2e/cached_plans.rs"]
mod cached_plans;
#[path = "e2e/canaries.rs"]
mod canaries;
#[path = "e2e/capacity.rs"]
mod capacity;
#[path = "e2e/change_export.rs"]
mod change_export;
#[path = "e2e/changes.rs"]
mod changes;
#[path = "e2e/child_runs.rs"]
mod child_runs;
#[path = "e2e/circuit_breaker.rs"]
mod circuit_breaker;
#[path = "e2e/clients.rs"]
mod clients;
#[path = "e2e/commands.rs"]
mod commands;
#[path = "e2e/conditional_writes.rs"]
mod conditional_writes;
#[path = "e2e/conform.rs"]
mod conform;
#[path = "e2e/connector_peers.rs"]
mod connector_peers;
#[path = "e2e/connectors.rs"]
mod connectors;
#[path = "e2e/console.rs"]
mod console;
#[path = "e2e/context.rs"]
mod context;
#[path = "e2e/conversations.rs"]
mod conversations;
#[path = "e2e/dev.rs"]
mod dev;
#[path = "e2e/dev_runners.rs"]
mod dev_runners;
#[path = "e2e/dev_settings.rs"]
mod dev_settings;
#[path = "e2e/deviations.rs"]
mod deviations;
#[path = "e2e/discovery.rs"]
mod discovery;
#[path = "e2e/docs.rs"]
mod docs;
#[path = "e2e/documented_commands.rs"]
mod documented_commands;
#[path = "e2e/dry_run.rs"]
mod dry_run;
#[path = "e2e/endpoints.rs"]
mod endpoints;
#[path = "e2e/event_files.rs"]
mod event_files;
#[path = "e2e/event_formats.rs"]
mod event_formats;
#[path = "e2e/event_log.rs"]
mod event_log;
#[path = "e2e/examples.rs"]
mod examples;
#[path = "e2e/faces.rs"]
mod faces;
#[path = "e2e/facts.rs"]
mod facts;
#[path = "e2e/failing_disk.rs"]
mod failing_disk;
#[path = "e2e/failover.rs"]
mod failover;
#[path = "e2e/feed.rs"]
mod feed;
#[path = "e2e/first_run.rs"]
mod first_run;
#[path = "e2e/forged_tokens.rs"]
mod forged_tokens;
#[path = "e2e/framing.rs"]
mod framing;
#[path = "e2e/graph.rs"]
mod graph;
#[path = "e2e/harness.rs"]
mod harness;
#[path = "e2e/harness_sandbox.rs"]
mod harness_sandbox;
#[path = "e2e/history.rs"]
mod history;
#[path = "e2e/hooks.rs"]
mod hooks;
#[path = "e2e/host_api.rs"]
mod host_api;
#[path = "e2e/host_runs.rs"]
mod host_runs;
#[path = "e2e/host_tokens.rs"]
mod host_tokens;
#[path = "e2e/inbound.rs"]
mod inbound;
#[path = "e2e/ingest.rs"]
mod ingest;
#[path = "e2e/injection.rs"]
mod injection;
#[path = "e2e/interaction_waits.rs"]
mod interaction_waits;
#[path = "e2e/interactions.rs"]
mod interactions;
#[path = "e2e/isolation.rs"]
mod isolation;
#[path = "e2e/jobs.rs"]
mod jobs;
#[path = "e2e/key_expiry.rs"]
mod key_expiry;
#[path = "e2e/knowledge.rs"]
mod knowledge;
#[path = "e2e/langbot_peer.rs"]
mod langbot_peer;
#[path = "e2e/late_bodies.rs"]
mod late_bodies;
#[path = "e2e/limits.rs"]
mod limits;
#[path = "e2e/local_agent.rs"]
mod local_agent;
#[path = "e2e/manifests.rs"]
mod manifests;
#[path = "e2e/mcp_tools.rs"]
mod mcp_tools;
#[path = "e2e/metrics.rs"]
mod metrics;
#[path = "e2e/migrate.rs"]
mod migrate;
#[path = "e2e/migrated_pipelines.rs"]
mod migrated_pipelines;
#[path = "e2e/misbehaviour.rs"]
mod misbehaviour;
#[path = "e2e/models.rs"]
mod models;
#[path = "e2e/on_behalf_of.rs"]
mod on_behalf_of;
#[path = "e2e/outbound.rs"]
mod outbound;
#[path = "e2e/own_limits.rs"]
mod own_limits;
#[path = "e2e/packaging.rs"]
mod packaging;
#[path = "e2e/pauses.rs"]
mod pauses;
#[path = "e2e/payload_limits.rs"]
mod payload_limits;
#[path = "e2e/pipeline_adapter.rs"]
mod pipeline_adapter;
#[path = "e2e/planner.rs"]
mod planner;
#[path = "e2e/platform_actions.rs"]
mod platform_actions;
#[path = "e2e/policies.rs"]
mod policies;
#[path = "e2e/principals.rs"]
mod principals;
#[path = "e2e/races.rs"]
mod races;
#[path = "e2e/reading.rs"]
mod reading;
#[path = "e2e/real_harnesses.rs"]
mod real_harnesses;
#[path = "e2e/response_limits.rs"]
mod response_limits;
#[path = "e2e/restarts.rs"]
mod restarts;
#[path = "e2e/restricted_keys.rs"]
mod restricted_keys;
#[path = "e2e/resumable.rs"]
mod resumable;
#[path = "e2e/retention.rs"]
mod retention;
#[path = "e2e/retries.rs"]
mod retries;
#[path = "e2e/retry_from.rs"]
mod retry_from;
#[path = "e2e/rights.rs"]
mod rights;
#[path = "e2e/roles.rs"]
mod roles;
#[path = "e2e/run_documents.rs"]
mod run_documents;
#[path = "e2e/run_endings.rs"]
mod run_endings;
#[path = "e2e/run_filters.rs"]
mod run_filters;
#[path = "e2e/run_streams.rs"]
mod run_streams;
#[path = "e2e/runner_docs.rs"]
mod runner_docs;
#[path = "e2e/schedules.rs"]
mod schedules;
#[path = "e2e/shared_mcp.rs"]
mod shared_mcp;
#[path = "e2e/sign_in.rs"]
mod sign_in;
#[path = "e2e/signing_keys.rs"]
mod signing_keys;
#[path = "e2e/skills.rs"]
mod skills;
#[path = "e2e/sources.rs"]
mod sources;
#[path = "e2e/ssrf.rs"]
mod ssrf;
#[path = "e2e/storage.rs"]
mod storage;
#[path = "e2e/takeover.rs"]
mod takeover;
#[path = "e2e/terminal.rs"]
mod terminal;
#[path = "e2e/terminal_commands.rs"]
mod terminal_commands;
#[path = "e2e/tool_effects.rs"]
mod tool_effects;
#[path = "e2e/tool_servers.rs"]
mod tool_servers;
#[path = "e2e/tools.rs"]
mod tools;
#[path = "e2e/traces.rs"]
mod traces;
#[path = "e2e/transport.rs"]
mod transport;
#[path = "e2e/unknown_effects.rs"]
mod unknown_effects;
#[path = "e2e/webhooks.rs"]
mod webhooks;
#[path = "e2e/workspaces.rs"]
mod workspaces;
