/**
 * Client for Runnel, the gateway for agent runs over HTTP. `runnel/runner` has the runner adapter, `runnel/node` its
 * servers for Node.
 */

export {
  Client,
  type ClientOptions,
  deltaText,
  type InteractionStatus,
  message,
  type PostOptions,
  type RunFilter,
  textOf,
  type UsageFilter,
} from "./client.js";
export {
  ApiError,
  GatewayUnreachableError,
  NoRunError,
  RunFailedError,
  RunnelError,
  StreamLostError,
} from "./errors.js";
export * from "./events.js";
export { RunStream } from "./stream.js";
export type * from "./types.js";
export { type HeadersLike, SeenIds, SignatureError, Webhook } from "./webhooks.js";
