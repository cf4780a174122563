import assert from "node:assert/strict";
import { test } from "node:test";
import { Webhook as StandardWebhook } from "standardwebhooks";
import { SeenIds, SignatureError, Webhook } from "../src/index.js";

const SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const OTHER = `whsec_${btoa("x".repeat(32))}`;
const NOW = 1795291200;
const ID = "list_01a1ffb1ba007c3a9b1e5f0c2a7d4e61";
const BODY = '{"action":"list_runners"}';
// The vector of crates/runner-kit/src/signature.rs.
const TAG = "v1,dSOfZVEacqpM+fy6+hUiHSOnD7J5vpwvq1QHcy4M8vs=";
const SIGNED = { "webhook-id": ID, "webhook-timestamp": `${NOW}`, "webhook-signature": TAG };
const hook = new Webhook(SECRET);

test("matches published signature vector", async () => {
  assert.deepEqual(await hook.sign(ID, BODY, NOW), SIGNED);
  assert.equal(await hook.verify(SIGNED, BODY, NOW), NOW);
  assert.equal(await hook.verify(new Headers(SIGNED), new TextEncoder().encode(BODY), NOW), NOW);
});

test("verifies requests with empty body", async () => {
  assert.equal(await hook.verify(await hook.sign("list_1", "", NOW), "", NOW), NOW);
});

test("agrees with the standard library", async () => {
  const headers = await hook.sign("m", BODY);
  assert.deepEqual(new StandardWebhook(SECRET).verify(BODY, headers), { action: "list_runners" });
});

test("rejects forged, old and early requests", async () => {
  const cases: [Partial<typeof SIGNED>, string, number][] = [
    [{}, "", NOW],
    [{ "webhook-id": "list_2" }, BODY, NOW],
    [{ "webhook-id": "" }, BODY, NOW],
    [{ "webhook-id": `${ID}.1` }, BODY, NOW],
    [{ "webhook-id": "x".repeat(256) }, BODY, NOW],
    [{ "webhook-timestamp": `${NOW - 1}` }, BODY, NOW],
    [{ "webhook-timestamp": "soon" }, BODY, NOW],
    [{ "webhook-timestamp": `+${NOW}` }, BODY, NOW],
    [{ "webhook-signature": "" }, BODY, NOW],
    [{ "webhook-signature": TAG.slice(0, -4) }, BODY, NOW],
    [{ "webhook-signature": TAG.replace("v1,", "v1a,") }, BODY, NOW],
    [{ "webhook-signature": "v1,größer" }, BODY, NOW],
    [{}, BODY, NOW + 301],
    [{}, BODY, NOW - 301],
  ];
  for (const [changed, body, now] of cases) {
    await assert.rejects(hook.verify({ ...SIGNED, ...changed }, body, now), SignatureError, JSON.stringify(changed));
  }
});

test("accepts both secrets during rotation", async () => {
  const several = { ...SIGNED, "webhook-signature": `v1a,xyz v1,AAAA ${TAG} v1,!!` };
  assert.equal(await new Webhook(`${OTHER} ${SECRET}`).verify(several, BODY, NOW), NOW);
  await assert.rejects(new Webhook(OTHER).verify(several, BODY, NOW), SignatureError);
});

test("header names have any case", async () => {
  const upper = Object.fromEntries(Object.entries(SIGNED).map(([name, value]) => [name.toUpperCase(), value]));
  assert.equal(await hook.verify(upper, BODY, NOW), NOW);
});

test("refuses secrets without quoting them", () => {
  for (const text of ["", "  ", "whsec_", "whsec_c2hvcnQ=", "whsec_!!", SECRET.slice(6)]) {
    assert.throws(
      () => new Webhook(text),
      (error: Error) => error instanceof TypeError && !(text.length > 6 && error.message.includes(text)),
      text,
    );
  }
});

test("ids count once within ten minutes", () => {
  const seen = new SeenIds();
  assert(seen.add("a", NOW, NOW));
  assert(!seen.add("a", NOW, NOW + 600));
  assert(seen.add("b", NOW + 601, NOW + 601));
  assert(seen.add("a", NOW + 601, NOW + 601));
});

test("full memory refuses requests as old as evicted ones", () => {
  const seen = new SeenIds(2);
  for (const [at, id] of ["a", "b", "c"].entries()) assert(seen.add(id, NOW + at, NOW + 2), id);
  assert(!seen.add("a", NOW, NOW + 2));
  assert(!seen.add("new", NOW, NOW + 2));
  assert(seen.add("new", NOW + 3, NOW + 3));
});
