"""The official client on an MCP face of the gateway: what it lists, and what its calls bring. `form` answers forms."""

import asyncio
import json
import sys

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult


async def main(request: dict) -> None:
    headers = {"authorization": f"Bearer {request['token']}"}
    forms = []

    async def fill(_context, params) -> ElicitResult:
        forms.append(params.model_dump(mode="json", by_alias=True, exclude_none=True))
        return ElicitResult(**request["form"])

    async with httpx2.AsyncClient(headers=headers) as http:
        transport = streamable_http_client(request["url"], http_client=http)
        elicitation = {"elicitation_callback": fill} if "form" in request else {}
        async with Client(transport, mode=request["mode"], **elicitation) as client:
            listed = await client.list_tools()
            results, progress = [], []
            for name, arguments in request["calls"]:
                seen = []

                async def show(_progress: float, _total: float | None, message: str | None, seen=seen) -> None:
                    seen.append(message)

                try:
                    result = await client.call_tool(name, arguments, progress_callback=show)
                    results.append(result.model_dump(mode="json", by_alias=True, exclude_none=True))
                except MCPError as error:
                    results.append({"code": error.error.code, "message": error.error.message})
                progress.append(seen)
            tools = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed.tools]
            print(json.dumps({"tools": tools, "results": results, "progress": progress, "forms": forms}))


asyncio.run(main(json.loads(sys.argv[1])))
