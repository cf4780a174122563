/** Errors of the client and of host API calls. */

import type { Json } from "./types.js";

/** Base of all errors of this package. */
export class RunnelError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/**
 * Rejection of a request by the gateway, or a failed host API call.
 *
 * `status` is the HTTP status, 0 for a host API call without a response. `code`, `reason` (its message), `retryable`
 * and `details` come from the response; many codes have a `details.reason`.
 */
export class ApiError extends RunnelError {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly reason: string,
    readonly retryable = false,
    readonly details: Json = {},
  ) {
    super(`${code}: ${reason}`);
  }

  /**
   * True if the run of a host API call has ended, was cancelled, or is past its deadline. A deadline that only a
   * tool, a model or a knowledge base has missed is no end of the run.
   */
  get isRunOver(): boolean {
    if (this.code === "deadline_exceeded") return !this.retryable && this.details.reason !== "upstream_timeout";
    return this.status === 401 || this.code === "cancelled";
  }
}

/** Missing response within the patience of the client. The outcome of the last request is unknown. */
export class GatewayUnreachableError extends RunnelError {}

/**
 * Event that the gateway stored without a run: for example, no agent takes events of this type.
 *
 * `reason` is `no_agent`, for example. `hint` is a sentence with the next step.
 */
export class NoRunError extends RunnelError {
  constructor(
    readonly eventId: string,
    readonly reason: string,
    readonly hint = "`runnel explain` shows which agents take it",
  ) {
    super(`event ${eventId} started no run: ${reason}; ${hint}`);
  }
}

/**
 * Stream that broke and could not be resumed in time. The run may be live: `follow(runId, after)`. `after` is the
 * sequence of the last event.
 */
export class StreamLostError extends RunnelError {
  constructor(
    readonly runId: string,
    readonly after: number,
    reason: string,
  ) {
    super(`the stream of run ${runId} broke after event ${after}: ${reason}`);
  }
}

/**
 * Error of `ask`: its run failed, was cancelled, or exceeded its deadline. `runId` names the run, for example for
 * `retry(runId)`. `code` is the code of the failure, such as `timeout`, `cancelled`, or one of the runner.
 */
export class RunFailedError extends RunnelError {
  constructor(
    readonly runId: string,
    readonly code: string,
    reason: string,
  ) {
    super(`run ${runId} failed, ${code}: ${reason}`);
  }
}

/** The error of a response. A proxy's error has no body of the gateway. */
export async function errorOf(response: Response): Promise<ApiError> {
  const { status } = response;
  const error = await response.json().then(
    (body) => body?.error,
    () => undefined,
  );
  // A proxy's error page is no JSON, or has no code.
  if (typeof error?.code === "string") {
    const details = typeof error.details === "object" && error.details !== null ? error.details : {};
    return new ApiError(status, error.code, `${error.message}`, error.retryable === true, details);
  }
  const retryable = status === 429 || status >= 500;
  return new ApiError(status, `http_${status}`, `HTTP ${status} without an error of the gateway`, retryable);
}

/** A short text for the cause of a failed request. */
export function textOfError(error: unknown): string {
  if (!(error instanceof Error)) return `${error}`;
  const cause = error.cause instanceof Error ? `: ${error.cause.message}` : "";
  return `${error.message}${cause}`;
}
