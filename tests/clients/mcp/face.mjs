// The official client on the gateway's MCP face: what it lists, and what its calls bring.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { url, token, calls } = JSON.parse(process.argv[2]);
const transport = new StreamableHTTPClientTransport(new URL(url), {
  requestInit: { headers: { authorization: `Bearer ${token}` } },
});
const client = new Client({ name: "peer", version: "1" });
await client.connect(transport);
await client.ping();
const listed = await client.listTools();
const results = [];
for (const [name, args] of calls) {
  try {
    results.push(await client.callTool({ name, arguments: args }));
  } catch (error) {
    results.push({ code: error.code, message: error.message });
  }
}
const server = client.getServerVersion();
await client.close();
console.log(JSON.stringify({ server, tools: listed.tools, results }));
