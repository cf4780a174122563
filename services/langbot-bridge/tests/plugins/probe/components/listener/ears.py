from langbot_plugin.api.definition.components.common.event_listener import EventListener
from langbot_plugin.api.entities import context, events
from langbot_plugin.api.entities.builtin.platform.message import MessageChain, Plain


class Ears(EventListener):
    async def initialize(self):
        @self.handler(events.PersonMessageReceived)
        async def person(ctx: context.EventContext):
            await ctx.set_query_var("mood", "fine")

        @self.handler(events.PersonNormalMessageReceived)
        async def normal(ctx: context.EventContext):
            mood, variables = await ctx.get_query_var("mood"), await ctx.get_query_vars()
            bot, models = await ctx.get_bot_uuid(), await self.plugin.get_llm_models()
            text = f"{ctx.event.text_message}: {mood} {sorted(variables)} {bot} {models}"
            await ctx.reply(MessageChain([Plain(text=text)]))
            ctx.event.reply_message_chain = MessageChain([Plain(text="and that is all")])
            ctx.prevent_default()

        @self.handler(events.GroupMemberJoined)
        async def joined(ctx: context.EventContext):
            await ctx.reply(MessageChain([Plain(text=f"{ctx.event.member.nickname} joined {ctx.event.group.name}")]))
