/** A call of the API as a command of a shell and as programs with the clients. The key stays in the environment. */

/** Method of a client, such as `run`, with JSON arguments. `fields` are named arguments. */
export interface ClientCall {
  method: string;
  args?: unknown[];
  fields?: Record<string, unknown>;
  /** True if the method returns an iterator of items. */
  isList?: boolean;
  /** Id of the interaction that is read first and passed as the first argument. */
  interaction?: string;
}

/** A call, and the method of the clients for it if there is one. */
export interface ApiCall {
  method: "GET" | "POST" | "PUT" | "DELETE";
  path: string;
  body?: unknown;
  client?: ClientCall;
}

/** A call as a command. */
export function curl({ method, path, body }: ApiCall, origin: string): string {
  const parts = [`curl -sS ${quote(new URL(path, origin).href)}`];
  if (method !== "GET") parts.push(`-X ${method}`);
  parts.push(`-H "Authorization: Bearer $RUNNEL_API_KEY"`);
  if (body !== undefined) {
    parts.push(`-H 'Content-Type: application/json'`, `-d ${quote(JSON.stringify(body))}`);
  }
  return parts.join(" \\\n  ");
}

/** A word of a POSIX shell. */
export function quote(word: string): string {
  return `'${word.replaceAll("'", `'\\''`)}'`;
}

/** Program for `clients/python`, which reads RUNNEL_API_KEY. */
export function python(call: ClientCall, origin: string): string {
  const named = Object.entries(call.fields ?? {}).map(([name, value]) => `${name}=${pythonValue(value)}`);
  const given = [...(call.args ?? []).map((value) => pythonValue(value)), ...named];
  const lines =
    call.interaction === undefined ? [] : [`question = client.interaction(${pythonValue(call.interaction)})`];
  const args = [...(call.interaction === undefined ? [] : ["question"]), ...given].join(", ");
  const expression = `client.${call.method}(${args})`;
  lines.push(...(call.isList ? [`for item in ${expression}:`, "    print(item)"] : [`print(${expression})`]));
  return [
    "from runnel import Client",
    "",
    `with Client(${pythonValue(origin)}) as client:`,
    ...lines.map((line) => `    ${line.replaceAll("\n", "\n    ")}`),
    "",
  ].join("\n");
}

/** Program for `clients/typescript`, which reads RUNNEL_API_KEY. */
export function typescript(call: ClientCall, origin: string): string {
  const given = (call.args ?? []).map((value) => JSON.stringify(value, null, 2) ?? "undefined");
  if (call.fields !== undefined) given.push(JSON.stringify(camelCased(call.fields)));
  const lines =
    call.interaction === undefined
      ? []
      : [`const question = await client.interaction(${JSON.stringify(call.interaction)});`];
  const args = [...(call.interaction === undefined ? [] : ["question"]), ...given].join(", ");
  const expression = `client.${camel(call.method)}(${args})`;
  lines.push(
    call.isList
      ? `for await (const item of ${expression}) console.log(item);`
      : `console.log(await ${expression});`,
  );
  return [
    `import { Client } from "runnel";`,
    "",
    `const client = new Client({ url: ${JSON.stringify(origin)} });`,
    ...lines,
    "",
  ].join("\n");
}

function camel(name: string): string {
  return name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
}

function camelCased(fields: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).map(([name, value]) => [camel(name), value]));
}

/** A JSON value as a literal of Python. */
export function pythonValue(value: unknown, indent = ""): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  // A text of JSON is one of Python.
  if (typeof value === "string") return JSON.stringify(value);
  if (typeof value !== "object") return `${value}`;
  const inner = `${indent}    `;
  const isList = Array.isArray(value);
  const members = isList
    ? value.map((item) => pythonValue(item, inner))
    : Object.entries(value)
        .filter(([, item]) => item !== undefined)
        .map(([key, item]) => `${JSON.stringify(key)}: ${pythonValue(item, inner)}`);
  const [open, close] = isList ? "[]" : "{}";
  if (members.length === 0) return `${open}${close}`;
  return `${open}\n${members.map((member) => `${inner}${member},\n`).join("")}${indent}${close}`;
}
