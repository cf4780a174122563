/** Signatures after Standard Webhooks (https://www.standardwebhooks.com), in both directions. */

/** Largest difference of a signature's timestamp to the clock. */
export const TOLERANCE_SECONDS = 300;
const PREFIX = "whsec_";
const MAX_ID_LENGTH = 255;
const encoder = new TextEncoder();

/** Request without a valid signature of this secret and time. Answer 401. */
export class SignatureError extends Error {
  override name = "SignatureError";
}

/** Headers as `Headers`, or as an object with names in any case. */
export type HeadersLike = Headers | Record<string, string | string[] | undefined>;

/**
 * Signer and verifier of requests, with one secret, or with several (separated by white space) during a rotation.
 *
 * A secret is `whsec_` and the base64 of 24 to 64 bytes; any other throws a `TypeError`.
 */
export class Webhook {
  readonly #keys: Uint8Array<ArrayBuffer>[];
  #imported: Promise<CryptoKey[]> | undefined;

  constructor(secret: string) {
    this.#keys = secret.split(/\s+/).filter(Boolean).map(keyOf);
    if (this.#keys.length === 0) {
      throw new TypeError("the signing secret is empty: use the secret of the runner endpoint, whsec_…");
    }
  }

  /**
   * Returns the timestamp of a valid signature in epoch seconds, or throws `SignatureError`.
   *
   * `body` is the body as it arrived, before it is parsed; a GET has the body "". The caller refuses a
   * `webhook-id` that it has seen: see `SeenIds`.
   */
  async verify(headers: HeadersLike, body: Uint8Array | string, now = Date.now() / 1000): Promise<number> {
    const id = headerOf(headers, "webhook-id");
    const when = headerOf(headers, "webhook-timestamp");
    // A dot in the id could be taken for the separator after it.
    if (!id || id.includes(".") || id.length > MAX_ID_LENGTH) {
      throw new SignatureError("header webhook-id is missing, empty, too long or has a dot");
    }
    if (!/^[0-9]{1,12}$/.test(when)) throw new SignatureError("header webhook-timestamp is not a number of seconds");
    if (Math.abs(Number(when) - now) > TOLERANCE_SECONDS) {
      throw new SignatureError("header webhook-timestamp is more than five minutes away");
    }
    const signed = signedBytes(id, when, body);
    for (const part of headerOf(headers, "webhook-signature").split(" ")) {
      const tag = part.startsWith("v1,") ? bytesOf(part.slice(3)) : undefined;
      if (!tag) continue;
      for (const key of await this.#cryptoKeys()) {
        // Compares in constant time.
        if (await crypto.subtle.verify("HMAC", key, tag, signed)) return Number(when);
      }
    }
    throw new SignatureError("no signature in header webhook-signature matches this request");
  }

  /** Headers of a request, signed with the first secret. `timestamp` is in epoch seconds. */
  async sign(
    id: string,
    body: Uint8Array | string,
    timestamp = Math.floor(Date.now() / 1000),
  ): Promise<Record<"webhook-id" | "webhook-timestamp" | "webhook-signature", string>> {
    const [key] = await this.#cryptoKeys();
    const tag = await crypto.subtle.sign("HMAC", key as CryptoKey, signedBytes(id, `${timestamp}`, body));
    const text = btoa(String.fromCharCode(...new Uint8Array(tag)));
    return { "webhook-id": id, "webhook-timestamp": `${timestamp}`, "webhook-signature": `v1,${text}` };
  }

  #cryptoKeys(): Promise<CryptoKey[]> {
    const algorithm = { name: "HMAC", hash: "SHA-256" };
    this.#imported ??= Promise.all(
      this.#keys.map((key) => crypto.subtle.importKey("raw", key, algorithm, false, ["sign", "verify"])),
    );
    return this.#imported;
  }
}

/**
 * Memory of the `webhook-id`s of the last ten minutes, bounded to `capacity` ids.
 *
 * A full memory evicts the oldest ids. Requests as old as an evicted id count as seen: the gateway's own requests are
 * seconds old.
 */
export class SeenIds {
  readonly #ids = new Map<string, number>();
  #evictedUntil = -1;

  constructor(private readonly capacity = 65_536) {}

  /** Records an id; false if it was seen. Call it after `verify`: unsigned requests must not fill the memory. */
  add(id: string, timestamp: number, now = Date.now() / 1000): boolean {
    // A map iterates in the order of insertion: the oldest id is first.
    for (const [oldest, at] of this.#ids) {
      // Twice the tolerance: a clock ahead of ours may sign five minutes in the future.
      if (at >= now - 2 * TOLERANCE_SECONDS) break;
      this.#ids.delete(oldest);
    }
    // An evicted id cannot be recognized, so requests as old as it count as seen.
    if (timestamp <= this.#evictedUntil || this.#ids.has(id)) return false;
    this.#ids.set(id, timestamp);
    if (this.#ids.size > this.capacity) {
      const [oldest, at] = this.#ids.entries().next().value as [string, number];
      this.#ids.delete(oldest);
      this.#evictedUntil = Math.max(this.#evictedUntil, at);
    }
    return true;
  }
}

function keyOf(text: string): Uint8Array<ArrayBuffer> {
  const key = text.startsWith(PREFIX) ? bytesOf(text.slice(PREFIX.length)) : undefined;
  if (!key || key.length < 24 || key.length > 64) {
    // The message never quotes the secret.
    throw new TypeError("a signing secret is whsec_ and the base64 of 24 to 64 bytes");
  }
  return key;
}

/** Undefined for text that is no base64. */
function bytesOf(base64: string): Uint8Array<ArrayBuffer> | undefined {
  // `atob` also accepts white space and missing padding.
  if (!/^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/.test(base64)) return undefined;
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

function signedBytes(id: string, when: string, body: Uint8Array | string): Uint8Array<ArrayBuffer> {
  const head = encoder.encode(`${id}.${when}.`);
  const data = typeof body === "string" ? encoder.encode(body) : body;
  const signed = new Uint8Array(head.length + data.length);
  signed.set(head);
  signed.set(data, head.length);
  return signed;
}

/** A header, with its name in lower case; empty if it is absent. */
export function headerOf(headers: HeadersLike, name: string): string {
  if (headers instanceof Headers) return headers.get(name) ?? "";
  const found = Object.entries(headers).flatMap(([key, value]) => (key.toLowerCase() === name ? (value ?? []) : []));
  // Another reader of the request could take another one.
  if (found.length > 1) throw new SignatureError(`header ${name} was sent twice`);
  return found[0] ?? "";
}
