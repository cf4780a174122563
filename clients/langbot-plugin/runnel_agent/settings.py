"""The settings of one agent."""

import dataclasses
import typing
import urllib.parse

_MAX_PATIENCE = 3600.0


class ConfigError(Exception):
    """A setting that cannot be used. The message names its key."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Address of the gateway, credentials, and retry limit."""

    url: str
    api_key: str
    source: str
    # Seconds without progress after which a run fails.
    patience: float
    # Pipeline that events name; empty: LangBot reports it.
    pipeline: str

    @classmethod
    def of(cls, config: dict[str, typing.Any]) -> "Settings":
        """Reads LangBot's form. Raises `ConfigError`."""
        url = str(config.get("url") or "").rstrip("/")
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("url must be the address of a gateway, such as https://runnel.example")
        key = str(config.get("api-key") or "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigError("api-key is missing: make one with `runnel token create --role client --name langbot`")
        try:
            patience = float(config.get("patience") or 60)
        except (TypeError, ValueError) as error:
            raise ConfigError("patience must be a number of seconds") from error
        if not 1 <= patience <= _MAX_PATIENCE:
            raise ConfigError(f"patience must be 1 to {_MAX_PATIENCE:g} seconds")
        pipeline = str(config.get("pipeline") or "").strip()
        return cls(url, key, str(config.get("source") or "langbot"), patience, pipeline)
