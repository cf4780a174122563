/** Formats of times, durations, tokens, bytes and money: one for each. */

/** Seconds as `1.2 s`, `3 min 4 s`, `2 h 5 min`. */
export function duration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export type Unit = "second" | "minute" | "hour" | "day" | "month" | "year";

/** Distance of two times in its largest unit; negative for the past. */
export function distance(seconds: number, now: number): { value: number; unit: Unit } {
  const steps: [Unit, number][] = [
    ["year", 31_536_000],
    ["month", 2_592_000],
    ["day", 86_400],
    ["hour", 3600],
    ["minute", 60],
  ];
  const left = seconds - now;
  for (const [unit, length] of steps) {
    if (Math.abs(left) >= length) return { value: Math.trunc(left / length), unit };
  }
  return { value: Math.trunc(left), unit: "second" };
}

const formats = new Map<string, Intl.RelativeTimeFormat>();

export function relative(seconds: number, now: number, language: string): string {
  let format = formats.get(language);
  if (format === undefined) {
    format = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "short" });
    formats.set(language, format);
  }
  const { value, unit } = distance(seconds, now);
  return format.format(value, unit);
}

/** Local time with its zone. */
export function absolute(seconds: number, language: string): string {
  return new Date(seconds * 1000).toLocaleString(language, { dateStyle: "medium", timeStyle: "long" });
}

export function count(value: number): string {
  return value.toLocaleString("en-US").replaceAll(",", "\u202f");
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let scaled = value;
  let unit = 0;
  while (scaled >= 1024 && unit < units.length - 1) {
    scaled /= 1024;
    unit += 1;
  }
  return `${unit === 0 || scaled >= 100 ? Math.round(scaled) : scaled.toFixed(1)} ${units[unit]}`;
}

/** Amount in the currency of the configured prices: two significant digits below 1, otherwise cents. */
export function money(value: number): string {
  if (value === 0) return "0";
  if (Math.abs(value) >= 1) return value.toFixed(2);
  return value.toLocaleString("en-US", { maximumSignificantDigits: 2, maximumFractionDigits: 20 });
}

/** First characters of an id, for tables. */
export function short(id: string): string {
  return id.length > 14 ? `${id.slice(0, 6)}…${id.slice(-5)}` : id;
}

export function pretty(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** The address if it is http or https, otherwise null: a link never runs a script. */
export function safeLink(address: string): string | null {
  try {
    const url = new URL(address);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}

/** JSON with sorted keys: two versions of an object differ in the changed lines only. */
export function canonical(value: unknown): string {
  return JSON.stringify(sorted(value), null, 2);
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).map(([key, inner]) => [key, sorted(inner)] as const);
  return Object.fromEntries(entries.toSorted(([a], [b]) => (a < b ? -1 : 1)));
}
