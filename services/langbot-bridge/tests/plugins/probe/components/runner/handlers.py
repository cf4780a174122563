from langbot_plugin.api.definition.components.runner.runner import Runner
from langbot_plugin.api.entities.builtin.platform.events import MemberJoinedEvent, MessageReceivedEvent
from langbot_plugin.api.entities.builtin.platform.message import Image, MessageChain, Plain


class Handlers(Runner):
    """Speaks by each way of the SDK's reply API."""

    async def initialize(self):
        @self.handler(MessageReceivedEvent)
        async def message(ctx):
            event = ctx.platform_event
            await ctx.reply(f"received {event.message_chain} from {event.sender.nickname} in {event.chat_type.value}")
            async with ctx.reply_stream() as stream:
                await stream.update("one")
                await stream.update("one two")

        @self.handler(MemberJoinedEvent)
        async def joined(ctx):
            chain = MessageChain(
                [Plain(text=f"welcome {ctx.platform_event.member.nickname}"), Image(url="https://x.test/a")]
            )
            await ctx.reply(chain, quote_origin=True)
            await ctx.log("greeted")
