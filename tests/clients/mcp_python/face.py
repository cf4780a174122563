"""The official client on the gateway's MCP face: what it lists, and what its calls bring."""

import asyncio
import json
import sys

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client


async def main(request: dict) -> None:
    headers = {"authorization": f"Bearer {request['token']}"}
    async with httpx2.AsyncClient(headers=headers) as http:
        transport = streamable_http_client(request["url"], http_client=http)
        async with Client(transport, mode=request["mode"]) as client:
            listed = await client.list_tools()
            results = []
            for name, arguments in request["calls"]:
                try:
                    result = await client.call_tool(name, arguments)
                    results.append(result.model_dump(mode="json", by_alias=True, exclude_none=True))
                except MCPError as error:
                    results.append({"code": error.error.code, "message": error.error.message})
            tools = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed.tools]
            print(json.dumps({"tools": tools, "results": results}))


asyncio.run(main(json.loads(sys.argv[1])))
