/** Calls of the gateway's API. Paths and types come from `openapi/gateway.json`. */

import createClient, { type Middleware } from "openapi-fetch";
import { ApiError, errorOf } from "./errors";
import type { components, paths } from "./schema";
import { currentKey, signOut } from "./session";

type Schemas = components["schemas"];
export type Run = Schemas["AgentRun"];
export type RunStatus = Schemas["RunStatus"];
export type RunEvent = Schemas["AgentRunEvent"];
export type AuditEntry = Schemas["AuditEntryView"];
export type Interaction = Schemas["Interaction"];
export type Schema<Name extends keyof Schemas> = Schemas[Name];

const authorize: Middleware = {
  onRequest({ request }) {
    const key = currentKey();
    // A call with a credential of its own keeps it.
    const isOpen = key !== null && !request.headers.has("Authorization");
    if (isOpen) request.headers.set("Authorization", `Bearer ${key}`);
    return request;
  },
};

export const api = createClient<paths>({ baseUrl: location.origin });
api.use(authorize);

interface Answer<Data> {
  data?: Data;
  error?: unknown;
  response: Response;
}

/** Data of a successful call; otherwise throws an [`ApiError`] with the gateway's own words. */
export async function dataOf<Data>(call: Promise<Answer<Data>>): Promise<NonNullable<Data>> {
  const { data, error, response } = await call;
  if (response.ok) return (data ?? {}) as NonNullable<Data>;
  throw rejected(errorOf(response.status, error));
}

/** Ends the session if the gateway does not accept the key. */
export function rejected(error: ApiError): ApiError {
  if (error.status === 401) signOut(error.message);
  return error;
}

/** A streamed GET. openapi-fetch would read the body to its end. */
export async function openStream(path: string, after: number, signal: AbortSignal): Promise<Response> {
  const headers = new Headers({ Accept: "text/event-stream", Authorization: `Bearer ${currentKey() ?? ""}` });
  if (after > 0) headers.set("Last-Event-ID", `${after}`);
  const response = await fetch(path, { headers, signal, cache: "no-store" });
  if (response.ok) return response;
  const body: unknown = await response.json().catch(() => undefined);
  throw rejected(errorOf(response.status, body));
}

export { ApiError };
