from langbot_plugin.api.definition.plugin import BasePlugin


class HelloPlugin(BasePlugin):
    """Has no settings."""
