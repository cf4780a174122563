/** `runnel serve` on an empty database, and rows by SQL. */

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { PROGRAM } from "../support/gateway.ts";

const MASTER_KEY = randomBytes(32).toString("hex");
const POSTGRES = process.env.RUNNEL_TEST_POSTGRES_URL;

export type Engine = "SQLite" | "PostgreSQL";
export const ENGINES: Engine[] = POSTGRES === undefined ? ["SQLite"] : ["SQLite", "PostgreSQL"];

export class Served {
  url = "";
  key = "";
  #directory = mkdtempSync(join(tmpdir(), "runnel-figures-"));
  #process: ChildProcess | undefined;
  #database = `runnel_figures_${process.pid}`;

  private constructor(readonly engine: Engine) {}

  static async start(engine: Engine): Promise<Served> {
    const served = new Served(engine);
    if (engine === "PostgreSQL") psql(`CREATE DATABASE ${served.#database}`);
    const config = [
      `server.listen = "127.0.0.1:0"`,
      `auth.master_key = "env:MASTER_KEY"`,
      `database.url = "${served.#databaseUrl()}"`,
    ];
    writeFileSync(join(served.#directory, "runnel.toml"), config.join("\n"));
    await served.restart();
    const created = execFileSync(
      PROGRAM,
      ["token", "create", "--role", "admin", "--name", "figures", "--json"],
      served.#options(),
    );
    served.key = JSON.parse(`${created}`).key;
    return served;
  }

  #databaseUrl(): string {
    if (this.engine === "SQLite") return `sqlite://${join(this.#directory, "figures.db")}`;
    return new URL(`/${this.#database}`, POSTGRES).href;
  }

  #options() {
    return { cwd: this.#directory, env: { ...process.env, MASTER_KEY } };
  }

  /** Starts the process, again with the same data. */
  async restart(): Promise<void> {
    this.#process?.kill("SIGKILL");
    const child = spawn(PROGRAM, ["serve", "--json", "--quiet"], {
      ...this.#options(),
      stdio: ["ignore", "pipe", "inherit"],
    });
    this.#process = child;
    const [printed] = await once(child.stdout, "data");
    this.url = JSON.parse(`${printed}`).listening;
  }

  /** Executes statements of both databases. */
  sql(text: string): void {
    if (this.engine === "PostgreSQL") psql(text, this.#databaseUrl());
    else
      execFileSync("sqlite3", ["-cmd", ".timeout 600000", join(this.#directory, "figures.db")], {
        input: text,
      });
  }

  stop(): void {
    this.#process?.kill("SIGKILL");
    if (this.engine === "PostgreSQL") psql(`DROP DATABASE ${this.#database} WITH (FORCE)`);
    rmSync(this.#directory, { recursive: true, force: true });
  }
}

function psql(text: string, url = POSTGRES): void {
  execFileSync("psql", ["--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", `--dbname=${url}`], {
    input: text,
    stdio: ["pipe", "ignore", "inherit"],
  });
}
