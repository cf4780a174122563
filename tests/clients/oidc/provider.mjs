// An OpenID provider. The clients `machine` and `stranger` get JWT access tokens for the audience `runnel`, or for the
// resource `other:api` for the audience `other`; `terminal` gets ID tokens by the device flow and by the code flow of a
// console on 127.0.0.1. `ana` and `bob` get opaque access tokens for the resource `actor:api`, which the client `gateway`
// exchanges (RFC 8693) for JWT of their own `sub`, for the audiences `crm` and, for two seconds, `brief`. `PORT`: default
// any.
import { createServer } from "node:http";
import { Provider, errors } from "oidc-provider";

const GROUPS = { ana: ["staff", "runnel-admins"], bob: ["staff"], machine: ["support"] };
const EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange";
const LIFETIMES = { crm: 600, brief: 2 };
const server = createServer((request, response) => provider.callback()(request, response));
await new Promise((resolve) => server.listen(Number(process.env.PORT ?? 0), "127.0.0.1", resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(issuer, {
  clients: [
    ...["machine", "stranger", "ana", "bob"].map((client_id) => ({
      client_id,
      client_secret: "secret",
      grant_types: ["client_credentials"],
      response_types: [],
      redirect_uris: [],
    })),
    {
      client_id: "gateway",
      client_secret: "secret of the gateway",
      grant_types: [EXCHANGE],
      response_types: [],
      redirect_uris: [],
    },
    {
      client_id: "terminal",
      grant_types: ["urn:ietf:params:oauth:grant-type:device_code", "authorization_code"],
      response_types: ["code"],
      // With any port, as those of a native client (RFC 8252).
      redirect_uris: ["http://127.0.0.1/console/sign-in"],
      token_endpoint_auth_method: "none",
      application_type: "native",
    },
  ],
  claims: { openid: ["sub"], groups: ["groups"], email: ["email"] },
  // Groups are claims of the ID token, as providers with an interface for administrators have them.
  conformIdTokenClaims: false,
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, groups: GROUPS[id] ?? [], email: `${id}@example.com` }),
  }),
  extraTokenClaims: (_, token) => ({ sub: token.clientId, groups: GROUPS[token.clientId] }),
  features: {
    clientCredentials: { enabled: true },
    deviceFlow: { enabled: true },
    devInteractions: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => "runnel:api",
      getResourceServerInfo: (_, resource) => ({
        scope: "api",
        audience: resource === "other:api" ? "other" : "runnel",
        accessTokenFormat: resource === "actor:api" ? "opaque" : "jwt",
        jwt: { sign: { alg: "RS256" } },
      }),
    },
  },
  pkce: { required: () => true },
  // The console reads the answer of the token endpoint.
  clientBasedCORS: (_, origin, client) =>
    client.clientId === "terminal" && new URL(origin).hostname === "127.0.0.1",
});

/** Exchanges an opaque token of an actor for a JWT of the same `sub`. */
async function exchange(ctx) {
  const { client, params } = ctx.oidc;
  const subject = await provider.ClientCredentials.find(params.subject_token);
  if (!subject || subject.aud !== "runnel") {
    throw new errors.InvalidGrant(`no live token: ${params.subject_token}`);
  }
  const ttl = LIFETIMES[params.audience];
  if (!ttl) throw new errors.InvalidTarget(`no service ${params.audience}`);
  const jwt = { sign: { alg: "RS256" } };
  const service = { scope: "read write", audience: params.audience, accessTokenFormat: "jwt", jwt };
  const token = new provider.AccessToken({
    accountId: subject.clientId,
    client,
    scope: params.scope,
    resourceServer: new provider.ResourceServer(`service:${params.audience}`, { ...service, accessTokenTTL: ttl }),
  });
  ctx.body = {
    access_token: await token.save(ttl),
    issued_token_type: "urn:ietf:params:oauth:token-type:access_token",
    token_type: "Bearer",
    expires_in: ttl,
    scope: params.scope,
  };
}
const PARAMETERS = ["subject_token", "subject_token_type", "requested_token_type", "audience", "scope"];
provider.registerGrantType(EXCHANGE, exchange, PARAMETERS);
console.log(`listening ${issuer}`);
