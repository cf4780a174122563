from langbot_plugin.api.definition.components.tool.tool import Tool


class Add(Tool):
    async def call(self, params, session, query_id):
        if "host" in params:
            return await self.plugin.get_llm_models()
        return {"sum": params["a"] + params["b"], "for": session.launcher_id}
