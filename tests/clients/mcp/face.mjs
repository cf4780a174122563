// The official client on an MCP face of the gateway: what it lists, and what its calls bring. A call is [name,
// arguments], or [name, arguments, message] to cancel it at the progress with this message.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { url, token, calls } = JSON.parse(process.argv[2]);
const sent = [];
const transport = new StreamableHTTPClientTransport(new URL(url), {
  requestInit: { headers: { authorization: `Bearer ${token}` } },
  fetch: (...request) => {
    const response = fetch(...request);
    sent.push(response.catch(() => {}));
    return response;
  },
});
const client = new Client({ name: "peer", version: "1" });
await client.connect(transport);
await client.ping();
const listed = await client.listTools();
const results = [];
const progress = [];
for (const [name, args, cancelAt] of calls) {
  const seen = [];
  const cancel = new AbortController();
  const onprogress = (one) => {
    seen.push(one);
    if (cancelAt && one.message === cancelAt) cancel.abort("enough");
  };
  try {
    results.push(await client.callTool({ name, arguments: args }, undefined, { onprogress, signal: cancel.signal }));
  } catch (error) {
    results.push({ code: error.code, message: error.message });
  }
  progress.push(seen);
}
// The notification of a cancel has no result to wait for.
await client.ping();
await Promise.all(sent);
const server = client.getServerVersion();
await client.close();
console.log(JSON.stringify({ server, tools: listed.tools, results, progress }));
