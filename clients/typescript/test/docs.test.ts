// The programs of the documentation compile against the package, and those of its client run.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import ts from "typescript";
import { Client } from "../src/index.js";
import { NEEDS_GATEWAY, startPlayground } from "./gateway_process.js";

const PACKAGE = join(dirname(fileURLToPath(import.meta.url)), "../..");
const PAGES = ["docs/runners/typescript.md", "docs/clients.md", "clients/typescript/README.md"];
/** Declarations that blocks of the README need from the surrounding program. */
const AROUND = `declare const endpoint: import("runnel/runner").Endpoint;
declare const app: { use(path: string, handler: unknown): void; all(path: string, handler: (c: { req: { raw: Request } }) => unknown): void };
declare const createServer: (handler: ReturnType<typeof import("runnel/node").toNodeHandler>) => unknown;
declare const perform: (action: import("runnel").PlatformAction) => Promise<string>;
declare const request: Request, body: Uint8Array, secret: string;
`;

/** The TypeScript blocks of a page. Generated clients have blocks of their own. */
function programs(page: string): string[] {
  const text = readFileSync(join(PACKAGE, "../..", page), "utf8");
  const blocks = text.split("```ts\n").slice(1).map((part) => part.split("```")[0] ?? "");
  return blocks.filter((block) => page.endsWith("README.md") || block.includes('from "runnel'));
}

test("programs of the documentation compile", () => {
  const directory = join(PACKAGE, "build/docs");
  mkdirSync(directory, { recursive: true });
  const files = PAGES.flatMap((page) => {
    const found = programs(page);
    assert(found.length > 0, page);
    return found.map((program, number) => {
      const file = join(directory, `${page.replaceAll("/", "_")}.${number}.ts`);
      const needed = AROUND.split("\n").filter((line) => {
        const names = [...line.matchAll(/(?:const|,) (\w+):/g)].map((match) => match[1]);
        return names.some((name) => new RegExp(`\\b${name}\\b`).test(program) && !program.includes(`const ${name} =`));
      });
      writeFileSync(file, `${needed.join("\n")}\n${program}\nexport {};\n`);
      return file;
    });
  });
  const source = (path: string) => [join(PACKAGE, "src", path)];
  const compiled = ts.createProgram(files, {
    strict: true,
    noEmit: true,
    skipLibCheck: true,
    target: ts.ScriptTarget.ES2022,
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext,
    types: ["node"],
    lib: ["lib.es2023.d.ts", "lib.dom.d.ts", "lib.dom.iterable.d.ts"],
    paths: { runnel: source("index.ts"), "runnel/runner": source("runner/index.ts"), "runnel/node": source("node.ts") },
  });
  const faults = ts.getPreEmitDiagnostics(compiled).map((fault) => {
    return `${fault.file?.fileName}: ${ts.flattenDiagnosticMessageText(fault.messageText, "\n")}`;
  });
  assert.deepEqual(faults, []);
});

test("README calls each client method", () => {
  const text = programs("clients/typescript/README.md").join("");
  const methods = Object.getOwnPropertyNames(Client.prototype).filter((name) => name !== "constructor");
  assert.deepEqual(methods.filter((name) => !text.includes(`client.${name}(`)), []);
});

test("client programs of the README run", NEEDS_GATEWAY, async () => {
  const playground = await startPlayground();
  const env = { ...process.env, RUNNEL_URL: playground.url, RUNNEL_API_KEY: playground.key };
  const index = new URL("../src/index.js", import.meta.url).href;
  try {
    const expected = [/Runnel is a gateway/, /completed\nuser Read the report\./];
    for (const [number, printed] of expected.entries()) {
      const program = programs("clients/typescript/README.md")[number] ?? "";
      const source = program.replace('{ url: "http://127.0.0.1:8700", apiKey: "rnl_…" }', "").replace('"runnel"', `"${index}"`);
      const { outputText } = ts.transpileModule(source, {
        compilerOptions: { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ES2022 },
      });
      const file = join(PACKAGE, `build/docs/client${number}.mjs`);
      mkdirSync(dirname(file), { recursive: true });
      writeFileSync(file, outputText);
      const { stdout } = await promisify(execFile)("node", [file], { env, timeout: 60_000 });
      assert.match(stdout, printed);
    }
  } finally {
    await playground.stop();
  }
});
