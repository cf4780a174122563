/** Failure that a runner throws to end its run. `text` is for the client; codes with `host.` are reserved. */
export class RunFailed extends Error {
  override name = "RunFailed";

  constructor(
    readonly code: string,
    readonly text: string,
    readonly retryable = false,
  ) {
    super(`${code}: ${text}`);
  }
}
