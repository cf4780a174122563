/** The OpenID provider of `tests/clients/oidc` as a child process. */

import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

const DIRECTORY = fileURLToPath(new URL("../../../tests/clients/oidc", import.meta.url));

export class Provider {
  private constructor(
    readonly url: string,
    readonly child: ChildProcess,
  ) {}

  static async start(): Promise<Provider> {
    if (!existsSync(`${DIRECTORY}/node_modules`)) throw new Error(`run npm ci in ${DIRECTORY}`);
    const child = spawn("node", ["provider.mjs"], { cwd: DIRECTORY, stdio: ["ignore", "pipe", "ignore"] });
    const url = await new Promise<string>((listening, fail) => {
      let printed = "";
      child.on("error", fail);
      child.on("exit", (code) => fail(new Error(`the provider ended with ${code}`)));
      child.stdout.on("data", (text) => {
        printed += text;
        const address = /^listening (\S+)$/m.exec(printed)?.[1];
        if (address !== undefined) listening(address);
      });
    });
    return new Provider(url, child);
  }

  get host(): string {
    return new URL(this.url).host;
  }

  /** Settings of a gateway with this provider. People of the group `runnel-admins` are admins. */
  settings(): string {
    const role = '{ claim = "groups", value = "runnel-admins", role = "admin" }';
    return `
[egress]
allow = ["${this.host}"]

[auth.oidc]
issuer = "${this.url}"
audience = "runnel"
client_id = "terminal"
scopes = ["openid", "email", "groups"]
roles = [${role}]
`;
  }

  stop(): void {
    this.child.kill("SIGKILL");
  }
}
