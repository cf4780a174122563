import { expect, test } from "vitest";
import {
  authorizationAddress,
  base64url,
  challengeOf,
  codeOf,
  isOwn,
  type PendingSignIn,
  type Provider,
  providerOf,
  randomText,
  readPending,
  refusal,
  SignInProblem,
  tokenOf,
} from "./pkce";

const URI = "https://runnel.example.com/console/sign-in";
const pending: PendingSignIn = { state: "s1", nonce: "n1", verifier: "v1", path: "/console/runs" };
const settings = {
  issuer: "https://id.example.com/realms/a",
  client_id: "runnel",
  scope: "openid email",
  authorization_endpoint: "https://id.example.com/authorize?tenant=a",
  token_endpoint: "https://id.example.com/token",
};
const provider = providerOf(settings) as Provider;

const answer = (query: string) => new URLSearchParams(query);

/** The key of the problem that a check throws. */
function problemOf(check: () => unknown): string {
  try {
    check();
  } catch (error) {
    if (error instanceof SignInProblem) return error.key;
    throw error;
  }
  return "none";
}

function tokenWith(claims: object): string {
  return `e30.${base64url(new TextEncoder().encode(JSON.stringify(claims)))}.c2ln`;
}

test("challenge of the example of RFC 7636", async () => {
  const challenge = await challengeOf("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk");
  expect(challenge).toBe("E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
});

test("random texts are verifiers of RFC 7636 and differ", () => {
  const texts = Array.from({ length: 50 }, randomText);
  for (const text of texts) expect(text).toMatch(/^[A-Za-z0-9_-]{43}$/);
  expect(new Set(texts).size).toBe(texts.length);
});

test("only providers with the code flow are offered", () => {
  expect(provider.host).toBe("id.example.com");
  for (const member of ["client_id", "authorization_endpoint", "token_endpoint"]) {
    expect(providerOf({ ...settings, [member]: undefined }), member).toBeNull();
  }
  expect(providerOf({ ...settings, authorization_endpoint: "javascript:alert(1)//https://x" })).toBeNull();
});

test("address of the provider has challenge, state and nonce, and no verifier", async () => {
  const address = new URL(await authorizationAddress(provider, pending, URI));
  expect(address.origin + address.pathname).toBe("https://id.example.com/authorize");
  expect(Object.fromEntries(address.searchParams)).toEqual({
    tenant: "a",
    response_type: "code",
    client_id: "runnel",
    redirect_uri: URI,
    scope: "openid email",
    state: "s1",
    nonce: "n1",
    code_challenge: await challengeOf("v1"),
    code_challenge_method: "S256",
  });
});

test("stored sign-ins are read only as they were written", () => {
  expect(readPending(JSON.stringify(pending))).toEqual(pending);
  for (const stored of [null, "", "{", "[]", "{}", JSON.stringify({ ...pending, state: "" })]) {
    expect(readPending(stored), `${stored}`).toBeNull();
  }
});

test("answers with another state are of another sign-in", () => {
  expect(isOwn(answer("code=c&state=s1"), pending)).toBe(true);
  for (const query of ["code=c&state=s2", "code=c&state=", "code=c", "error=access_denied&state=S1"]) {
    expect(isOwn(answer(query), pending), query).toBe(false);
  }
  expect(isOwn(answer("code=c&state=s1"), null)).toBe(false);
});

test("codes of other issuers and answers without a code are refused", () => {
  const read = (query: string) => codeOf(answer(query), provider, URI);
  expect(read("code=c&state=s1")).toBe("c");
  expect(read(`code=c&state=s1&iss=${encodeURIComponent(provider.issuer)}`)).toBe("c");
  expect(problemOf(() => read("code=c&state=s1&iss=https://id.example.com"))).toBe("signIn.otherIssuer");
  expect(problemOf(() => read("state=s1"))).toBe("signIn.refused");
  expect(problemOf(() => read("code=c&error=access_denied&state=s1"))).toBe("signIn.refused");
  expect(problemOf(() => read("error=invalid_scope&state=s1"))).toBe("signIn.settings");
});

test("errors of the provider name their reason and the next step", () => {
  const denied = refusal(provider, { error: "access_denied", error_description: "not today." }, URI);
  expect([denied.key, denied.values.reason]).toEqual(["signIn.refused", "not today"]);
  const later = refusal(provider, { error: "temporarily_unavailable" }, URI);
  expect([later.key, later.values.reason]).toEqual(["signIn.later", "temporarily_unavailable"]);
  const client = refusal(provider, { error: "invalid_client" }, URI);
  expect([client.key, client.values.uri]).toEqual(["signIn.settings", URI]);
  for (const other of [undefined, "<html>", { error: 5 }]) {
    expect(refusal(provider, other, URI).key, `${other}`).toBe("signIn.refused");
  }
});

test("only ID tokens with the nonce are used", () => {
  const read = (id_token: unknown) => tokenOf({ id_token, access_token: "x" }, pending, provider);
  const token = tokenWith({ nonce: "n1", name: "Zoë" });
  expect(read(token)).toBe(token);
  for (const other of [tokenWith({ nonce: "n2" }), tokenWith({}), tokenWith([]), "opaque", "a.b.c", ""]) {
    const problem = problemOf(() => read(other));
    expect(problem, other).toBe("signIn.otherSignIn");
  }
  expect(problemOf(() => read(undefined))).toBe("signIn.noToken");
});
