from langbot_plugin.api.definition.plugin import BasePlugin


class Probe(BasePlugin):
    async def initialize(self):
        self.is_ready = True
