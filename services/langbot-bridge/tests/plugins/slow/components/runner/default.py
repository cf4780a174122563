from langbot_plugin.api.definition.components.runner.runner import Runner
from langbot_plugin.api.entities.builtin.provider.message import MessageChunk
from langbot_plugin.api.entities.builtin.runner import RunnerContext, RunnerResult


class SlowRunner(Runner):
    """Greets with the words of the message, one delta each."""

    async def run(self, ctx: RunnerContext):
        text = ""
        for word in [f"{ctx.config['greeting']},", *ctx.input.to_text().split()]:
            text = f"{text} {word}".strip()
            chunk = MessageChunk(role="assistant", content=text)
            yield RunnerResult.message_delta(ctx.run_id, chunk)
