/** A million runs: times of lists and counts over HTTP, and of the page. */

import { expect, test } from "@playwright/test";
import { ENGINES, type Engine, Served } from "./served.ts";
import { openMs, summary } from "./timing.ts";

const RUNS = 1_000_000;
const REPEATED = 15;
const AGENT = "01a00000-0000-7000-8000-0000000000a0";
const ENDPOINT = "01a00000-0000-7000-8000-0000000000e0";
/** Id of run `i`: a thousand have the same begin. */
const ID = "(10000000 + i / 1000) || '-0000-7000-8000-' || (100000000000 + i)";
/** Ninety days, the newest run now. */
const STEP_MS = Math.floor((90 * 86_400_000) / RUNS);

/** Statements of both databases. One run of 15 has failed, and the newest 300 are running elsewhere. */
function rows(engine: Engine): string {
  const now = Date.now();
  const at = `${now} - (${RUNS} - i) * ${STEP_MS}`;
  const isLive = `i > ${RUNS - 300}`;
  const numbers = `WITH RECURSIVE n (i) AS (SELECT CAST(1 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < ${RUNS})`;
  const frozen = engine === "SQLite" ? ["", ""] : [", agent_spec, snapshot", ", '{}', '{}'"];
  return `
    INSERT INTO conversations ${numbers}
      SELECT 'k' || i, 'default', 'bot', 'talk-' || i, '', 1, 1, 1 FROM n WHERE i <= 50000;
    INSERT INTO events (workspace_id, event_id, dedupe_key, body_sha256, answer, event_type, source, bot_id,
      conversation_key, event_seq, envelope, received_at) ${numbers}
      SELECT 'default', 'e' || i, 'key:order-' || i, '', '{"event_id":"e' || i || '","run_id":"' || ${ID} || '"}', 'message.received', 'api', 'bot', 'k' || (i % 50000),
      i, '{"input":{"text":"Question ' || i || ' about an order that is late"}}', ${at} FROM n;
    INSERT INTO runs (id, workspace_id, event_id, agent_id, agent_version, runner_id, endpoint_id, conversation_key,
      status, status_reason, attempt, lease_owner, lease_epoch, lease_expires_at, last_sequence, deadline_at,
      snapshot_sha256, metadata, created_at, started_at, finished_at${frozen[0]}) ${numbers}
      SELECT ${ID}, 'default', 'e' || i, '01a00000-0000-7000-8000-0000000000a' || (i % 10), 1,
      'plugin:test/runner-' || (i % 4) || '/default', '01a00000-0000-7000-8000-0000000000e' || (i % 4),
      'k' || (i % 50000),
      CASE WHEN ${isLive} THEN 'running' WHEN i % 15 = 0 THEN 'failed' WHEN i % 97 = 0 THEN 'cancelled' ELSE 'completed' END,
      CASE WHEN ${isLive} THEN NULL WHEN i % 15 = 0 THEN 'model.error' WHEN i % 97 = 0 THEN 'cancelled' ELSE 'stop' END,
      1, CASE WHEN ${isLive} THEN 'elsewhere' END, 1, ${now + 86_400_000}, 12, ${now + 86_400_000},
      '', '{}', ${at}, ${at}, CASE WHEN ${isLive} THEN NULL ELSE ${at} + i % 60000 END${frozen[1]} FROM n;
    INSERT INTO usage_calls (id, workspace_id, run_id, kind, resource, outcome, prompt_tokens, completion_tokens,
      is_estimate, cost_micros, wall_ms, at) ${numbers}
      SELECT 'u' || i, 'default', ${ID}, 'model', 'gpt', 'ok', 900, 90, 0, i % 5000, 800, ${at} FROM n;
  `;
}

const DAY = 86_400;
const now = Math.floor(Date.now() / 1000);
const QUERIES = {
  all: "",
  "failed, timeout": "statuses=failed,timeout",
  running: "statuses=running",
  queued: "statuses=queued",
  "failed today": `statuses=failed,timeout&created_after=${now - DAY}`,
  "created a month ago": `created_after=${now - 31 * DAY}&created_before=${now - 30 * DAY}`,
  agent: `agent_id=${AGENT}`,
  "agent, failed": `agent_id=${AGENT}&statuses=failed`,
  "no such agent": "agent_id=01a00000-0000-7000-8000-0000000000ff",
  runner: "runner_id=plugin:test/runner-1/default",
  "no such runner": "runner_id=plugin:no/such/runner",
  endpoint: `endpoint_id=${ENDPOINT}`,
  conversation: "conversation_id=talk-7&bot_id=bot",
  "conversation of any bot": "conversation_id=talk-7",
  "idempotency key": "idempotency_key=order-500000",
  "begin of ids": "text=10000500",
  "begin of keys": "text=order-9999",
  "text without match": "text=no-such-text",
  "error code": "error_code=model.error",
  "error code without match": "error_code=no.such",
  "minimum duration": "min_duration_ms=59000",
  "minimum cost": "min_cost=0.0049",
  "cost without match": "min_cost=100",
};

for (const engine of ENGINES) {
  test(`runs on ${engine}`, async ({ page }) => {
    const served = await Served.start(engine);
    try {
      const began = Date.now();
      served.sql(rows(engine));
      console.log(`\n${RUNS} runs on ${engine}, inserted in ${Math.round((Date.now() - began) / 1000)} s`);
      console.log("median and longest, without statistics");
      await report(served, ["all", "failed, timeout", "agent", "conversation"]);
      if (engine === "PostgreSQL") {
        served.sql("ANALYZE");
        console.log("with statistics");
        await report(served, Object.keys(QUERIES) as (keyof typeof QUERIES)[]);
        served.sql(
          "DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET plan_cache_mode = force_generic_plan', current_database()); END$$",
        );
        await served.restart();
        console.log("with generic plans");
      }
      await report(served, Object.keys(QUERIES) as (keyof typeof QUERIES)[]);
      await page.goto(`${served.url}/console/#key=${served.key}`);
      await expect(page.getByRole("navigation").first()).toBeVisible();
      for (const name of ["all", "failed, timeout", "agent", "conversation"] as const) {
        const url = `${served.url}/console/runs?${QUERIES[name]}`;
        const times: number[] = [];
        const least = name === "conversation" ? 20 : 50;
        for (let at = 0; at < 7; at += 1) times.push(await openMs(page, url, "tbody tr", least));
        console.log(`page, ${name}`.padEnd(32), summary(times));
      }
    } finally {
      served.stop();
    }
  });
}

async function report(served: Served, names: (keyof typeof QUERIES)[]): Promise<void> {
  for (const name of names) {
    for (const path of ["/v1/runs", "/v1/runs/counts"]) {
      const times: number[] = [];
      let found = "";
      for (let at = 0; at < REPEATED; at += 1) {
        const began = performance.now();
        const answer = await fetch(`${served.url}${path}?${QUERIES[name]}`, {
          headers: { authorization: `Bearer ${served.key}` },
        });
        const text = await answer.text();
        times.push(performance.now() - began);
        if (!answer.ok) throw new Error(`${name}: ${text}`);
        const body = JSON.parse(text);
        if (path === "/v1/runs") found = `${body.items.length} runs`;
      }
      console.log(`${path === "/v1/runs" ? "list" : "count"}, ${name}`.padEnd(32), summary(times), found);
    }
  }
}
