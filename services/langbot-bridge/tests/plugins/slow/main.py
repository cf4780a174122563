import asyncio
from os import environ
from pathlib import Path

from langbot_plugin.api.definition.plugin import BasePlugin


class SlowPlugin(BasePlugin):
    """Loads once a file is there."""

    async def initialize(self):
        go = Path(environ["SLOW_PLUGIN_GO"])
        while not await asyncio.to_thread(go.exists):
            await asyncio.sleep(0.05)
