from langbot_plugin.api.definition.plugin import BasePlugin


class RunnelPlugin(BasePlugin):
    """Has no settings of its own: each agent names its gateway."""
