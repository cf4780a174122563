import contextlib

from langbot_plugin.api.definition.components.runner.runner import Runner
from langbot_plugin.api.entities.builtin.runner import RunnerContext

from runnel_agent.agent import execute


class RunnelAgent(Runner):
    """An agent that lives in a Runnel gateway."""

    async def run(self, ctx: RunnerContext):
        # Closed at once where LangBot stops reading, so that the gateway's run is cancelled.
        async with contextlib.aclosing(execute(ctx)) as results:
            async for result in results:
                yield result
