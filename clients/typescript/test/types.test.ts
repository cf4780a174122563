// The types of the package against the API documents of this repository.
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const PACKAGE = join(dirname(fileURLToPath(import.meta.url)), "../..");
const REPOSITORY = join(PACKAGE, "../..");

type Schema = {
  $ref?: string;
  type?: string | string[];
  enum?: (string | null)[];
  properties?: Record<string, Schema>;
  required?: string[];
  allOf?: Schema[];
  oneOf?: Schema[];
  anyOf?: Schema[];
  items?: Schema;
  discriminator?: { mapping?: Record<string, string> };
};
type Schemas = Record<string, Schema>;

// Responses: the package leaves out fields that have no meaning for callers.
const PARTIAL = new Set(["AgentRun", "ArtifactMetadata", "TranscriptItem"]);
// The gateway accepts these from runners without the fields that the protocol requires.
const TELEMETRY = new Set(["ToolCallStartedPayload", "ToolCallCompletedPayload", "ArtifactCreatedPayload"]);
// The field of a request that the document does not list, because the gateway translates it.
const ALIASES = new Set(["InputAttachment.artifact_id"]);
// Unions by `type`: see the last test.
const UNIONS = new Set(["EventOf", "EventData"]);

const documents = ["runner", "gateway"].map((name) => {
  const text = readFileSync(join(REPOSITORY, `openapi/${name}.json`), "utf8");
  return (JSON.parse(text) as { components: { schemas: Schemas } }).components.schemas;
});
const files = ["types", "events", "runner/context"].map((name) => join(PACKAGE, `src/${name}.ts`));
const ENTRIES = ["index.ts", "runner/index.ts", "node.ts"];
const roots = [...files, ...ENTRIES.map((entry) => join(PACKAGE, "src", entry))];
const program = ts.createProgram(roots, { strict: true, target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.NodeNext });
const checker = program.getTypeChecker();

function declared(): ts.InterfaceDeclaration[] {
  const sources = files.map((file) => program.getSourceFile(file));
  const statements = sources.flatMap((source) => [...(source?.statements ?? [])]);
  return statements.filter(ts.isInterfaceDeclaration).filter((one) => !UNIONS.has(one.name.text));
}

function schemaOf(name: string): { schemas: Schemas; schema: Schema } {
  for (const schemas of documents) if (schemas[name]) return { schemas, schema: schemas[name] };
  throw new Error(`no document has a schema ${name}`);
}

/** Properties and required fields with those of `$ref` and `allOf`. */
function merged(schemas: Schemas, schema: Schema): { properties: Record<string, Schema>; required: Set<string> } {
  if (schema.$ref) return merged(schemas, schemas[schema.$ref.split("/").at(-1) ?? ""] ?? {});
  const parts = (schema.allOf ?? []).map((part) => merged(schemas, part));
  return {
    properties: Object.assign({}, schema.properties, ...parts.map((part) => part.properties)),
    required: new Set([...(schema.required ?? []), ...parts.flatMap((part) => [...part.required])]),
  };
}

function valuesOf(schemas: Schemas, schema: Schema): string[] {
  if (schema.$ref) return valuesOf(schemas, schemas[schema.$ref.split("/").at(-1) ?? ""] ?? {});
  const parts = [...(schema.oneOf ?? []), ...(schema.anyOf ?? []), ...(schema.allOf ?? [])];
  if (schema.items) parts.push(schema.items);
  return [...(schema.enum ?? []), ...parts.flatMap((part) => valuesOf(schemas, part))].filter((one) => one !== null);
}

/** The literals of a type, also of a list. */
function literalsOf(type: ts.Type): string[] {
  const parts = type.isUnion() ? type.types : [type];
  return parts.flatMap((part) => {
    if (part.isStringLiteral()) return [part.value];
    if (!checker.isArrayType(part)) return [];
    const [item] = checker.getTypeArguments(part as ts.TypeReference);
    return item ? literalsOf(item) : [];
  });
}

for (const declaration of declared()) {
  const name = declaration.name.text;
  test(`type ${name} matches its schema`, () => {
    const { schemas, schema } = schemaOf(name);
    const { properties, required } = merged(schemas, schema);
    const fields = checker.getTypeAtLocation(declaration).getProperties();
    const own = fields.filter((field) => !ALIASES.has(`${name}.${field.name}`));
    const names = new Set(own.map((field) => field.name));
    assert.deepEqual([...names].filter((field) => !(field in properties)), [], "the document has no such field");
    if (!PARTIAL.has(name)) {
      assert.deepEqual(Object.keys(properties).filter((field) => !names.has(field)), [], "the type has no such field");
    }
    for (const field of own) {
      const isOptional = (field.flags & ts.SymbolFlags.Optional) !== 0;
      if (!TELEMETRY.has(name)) assert.equal(!isOptional, required.has(field.name), `${field.name} is required`);
      const literals = literalsOf(checker.getTypeOfSymbol(field));
      if (literals.length === 0) continue;
      const values = valuesOf(schemas, properties[field.name] ?? {});
      assert.deepEqual([...new Set(literals)].sort(), [...new Set(values)].sort(), field.name);
    }
  });
}

test("events have all types", () => {
  const events = program.getSourceFile(files[1] ?? "");
  const data = events?.statements.filter(ts.isInterfaceDeclaration).find((one) => one.name.text === "EventData");
  assert(data);
  const types = checker.getTypeAtLocation(data).getProperties().map((one) => one.name);
  const source = readFileSync(join(REPOSITORY, "crates/protocol/src/result.rs"), "utf8");
  const listed = source.slice(source.indexOf("result_types!(\n"), source.indexOf(");", source.indexOf("result_types!(\n")));
  assert.deepEqual(types.sort(), [...listed.matchAll(/= "([^"]+)"/g)].map((found) => found[1]).sort());
  // The document of runners describes an event without the union.
  const union = documents.map((schemas) => schemas.AgentRunEvent?.discriminator?.mapping).find((one) => one);
  // Events of the gateway, which no runner can send.
  assert.deepEqual([...types, "run.restarted", "run.amended"].sort(), Object.keys(union ?? {}).sort());
});

/** Exports of an entry point, with the public members of classes. */
function publicItems(entry: string): [string, ts.Symbol][] {
  const file = program.getSourceFile(join(PACKAGE, "src", entry));
  const module = file && checker.getSymbolAtLocation(file);
  assert(module, entry);
  return checker.getExportsOfModule(module).flatMap((exported) => {
    const one = exported.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(exported) : exported;
    // `results` is a module of functions.
    if (one.flags & ts.SymbolFlags.ValueModule) {
      return checker.getExportsOfModule(one).map((inner): [string, ts.Symbol] => [`results.${inner.name}`, inner]);
    }
    const isClass = one.flags & ts.SymbolFlags.Class;
    const members = isClass ? [...(one.members?.values() ?? [])] : [];
    const callable = ts.SymbolFlags.Method | ts.SymbolFlags.GetAccessor;
    const own = members.filter((member) => member.flags & callable && !/^(__|#)/.test(member.name));
    return [[one.name, one], ...own.map((member): [string, ts.Symbol] => [`${one.name}.${member.name}`, member])];
  });
}

test("public items have documentation", () => {
  const items = ENTRIES.flatMap(publicItems);
  const names = items.map(([name]) => name);
  for (const name of ["Client.runs", "AgentRun", "RunContext.text", "State.put", "results.delta", "serve"]) {
    assert(names.includes(name), name);
  }
  const bare = items.filter(([, one]) => one.getDocumentationComment(checker).length === 0);
  assert.deepEqual(bare.map(([name]) => name), []);
});

test("licence is that of the repository", () => {
  assert.equal(readFileSync(join(PACKAGE, "LICENSE"), "utf8"), readFileSync(join(REPOSITORY, "LICENSE"), "utf8"));
});

test("every exported path of the package exists", () => {
  const { exports } = JSON.parse(readFileSync(join(PACKAGE, "package.json"), "utf8"));
  for (const { types, default: code } of Object.values<{ types: string; default: string }>(exports)) {
    const source = join(PACKAGE, code.replace("./dist/", "src/").replace(/\.js$/, ".ts"));
    assert(existsSync(source), source);
    assert.equal(types, code.replace(/\.js$/, ".d.ts"));
  }
});
