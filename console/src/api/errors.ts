/** Error of the gateway: HTTP status, code, and its message. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly retryable = false,
    readonly details: Record<string, unknown> = {},
  ) {
    super(message);
    this.name = "ApiError";
  }
}

/** A fault of a field, by its JSON pointer. */
export interface FieldFault {
  pointer: string;
  message: string;
}

/** Error of a response body `{error: {code, message, retryable, details}}`. A proxy's error page has none. */
export function errorOf(status: number, body: unknown): ApiError {
  const error = record(record(body).error);
  if (typeof error.code !== "string") {
    const retryable = status === 429 || status >= 500;
    return new ApiError(
      status,
      `http_${status}`,
      `HTTP ${status} without an error of the gateway`,
      retryable,
    );
  }
  return new ApiError(
    status,
    error.code,
    `${error.message}`,
    error.retryable === true,
    record(error.details),
  );
}

/** True if the gateway does not have the operation, as one of an older version. */
export function isUnsupported(error: unknown): boolean {
  if (!(error instanceof ApiError)) return false;
  // Absent objects are 404, too: the message distinguishes absent routes.
  const isNoRoute =
    error.status === 404 && (error.code === "http_404" || /no such route/.test(error.message));
  return error.status === 405 || isNoRoute;
}

/** Faults of single fields in `details.faults` or `details.pointer`. */
export function faultsOf(error: unknown): FieldFault[] {
  if (!(error instanceof ApiError)) return [];
  const { faults, pointer } = error.details;
  const list = Array.isArray(faults)
    ? faults
    : typeof pointer === "string"
      ? [{ pointer, message: error.message }]
      : [];
  return list
    .map(record)
    .map((fault) => ({ pointer: `${fault.pointer ?? ""}`, message: `${fault.message ?? ""}` }));
}

/** The value if it is an object, otherwise an empty one. */
export function record(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : {};
}
