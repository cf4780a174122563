/** The endpoint in Node: a handler for `node:http` and Express, and a server of its own. */

import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { type Endpoint, type EndpointResponse, Rejection } from "./runner/endpoint.js";
import { unverifiedBytes } from "./runner/unverified.js";

const BODY_TIMEOUT = 30_000;

/** Handler for `createServer(handler)` and for Express: `app.use("/agent", toNodeHandler(endpoint))`. */
export function toNodeHandler(endpoint: Endpoint): (request: IncomingMessage, response: ServerResponse) => void {
  return (request, response) => {
    answer(endpoint, request, response).catch((error: unknown) => {
      console.error("runner endpoint:", error);
      // The headers may be sent already, so the connection is closed in place of an error response.
      response.destroy();
    });
  };
}

/**
 * Serves an endpoint until the returned server is closed. Default: `127.0.0.1`, port 9100. Port 0 selects a free port;
 * the first line of the output has the address.
 */
export async function serve(
  endpoint: Endpoint,
  options: { host?: string | undefined; port?: number | string | undefined } = {},
): Promise<Server> {
  const server = createServer(toNodeHandler(endpoint));
  // The gateway closes idle connections after 4 s. A server must keep them longer.
  server.keepAliveTimeout = 10_000;
  const host = options.host ?? "127.0.0.1";
  server.listen(Number(options.port ?? 9100), host);
  await once(server, "listening");
  console.log(`listening http://${host}:${(server.address() as AddressInfo).port}`);
  return server;
}

async function answer(endpoint: Endpoint, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const path = new URL(request.url ?? "/", "http://host").pathname;
  let answered: EndpointResponse;
  try {
    const body = await read(request, endpoint);
    answered = await endpoint.handle({ method: request.method ?? "GET", path, headers: request.headers, body });
  } catch (error) {
    if (!(error instanceof Rejection)) throw error;
    answered = error.response();
  }
  response.writeHead(answered.status, answered.headers);
  if (!answered.frames) {
    response.end(answered.body);
    return;
  }
  response.once("close", () => answered.close?.());
  // The frames end by themselves, unless the peer of this connection takes no more bytes.
  answered.replaced?.addEventListener("abort", () => response.writableNeedDrain && response.destroy());
  // The connection may have closed during `handle`; `close` is not emitted a second time.
  if (response.destroyed) answered.close?.();
  for await (const frame of answered.frames) {
    if (response.destroyed) break;
    // Backpressure: a slow reader pauses the run. A closed connection emits no `drain`.
    if (!response.write(frame)) await Promise.race([once(response, "drain"), once(response, "close")]);
  }
  response.end();
}

async function read(request: IncomingMessage, endpoint: Endpoint): Promise<Uint8Array> {
  const parsed = (request as { body?: unknown }).body;
  // From `express.raw()`.
  if (parsed instanceof Uint8Array) return parsed;
  if (request.readableEnded && Number(request.headers["content-length"] ?? 0) > 0) {
    throw new Error("the body was read before the runner endpoint: mount it before express.json()");
  }
  // A stalled sender must not hold its connection.
  const timer = setTimeout(() => request.destroy(), BODY_TIMEOUT);
  try {
    return await unverifiedBytes.read(request, endpoint.maxBodyBytes, () => endpoint.tooLarge());
  } finally {
    clearTimeout(timer);
  }
}
