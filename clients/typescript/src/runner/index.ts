/** Runner adapter: serves functions as runners, by a Fetch handler. `runnel/node` serves it with Node and Express. */

export type * from "./context.js";
export { Endpoint, type EndpointOptions, type EndpointRequest, type EndpointResponse, type RunnerOptions } from "./endpoint.js";
export type { RunFunction, Yielded } from "./execution.js";
export { RunFailed } from "./failure.js";
export { HostApi, type HostCall } from "./host.js";
export { ModelAnswer, type ModelOptions, Models, NoModelError, Tools } from "./models.js";
export * as results from "./results.js";
export type { Result } from "./results.js";
export { Files, History, Interactions, Knowledge, RunContext, State } from "./run.js";
