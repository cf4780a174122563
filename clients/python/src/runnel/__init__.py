"""Client and runner adapter for Runnel, the gateway for agent runs over HTTP.

* `Client` and `AsyncClient` post events and stream runs.
* `Endpoint` of `runnel.runner` serves runners.
* `Webhook` signs and verifies requests.
"""

from .client import AsyncClient, RunFailedError, RunFilters, delta_text, message
from .errors import ApiError, ClientClosedError, GatewayUnreachableError, NoRunError, RunnelError, StreamLostError
from .events import RunEvent
from .stream import RunStream
from .sync import Client, SyncRunStream
from .webhooks import SeenIds, SignatureError, Webhook

__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "ClientClosedError",
    "GatewayUnreachableError",
    "NoRunError",
    "RunEvent",
    "RunFailedError",
    "RunFilters",
    "RunStream",
    "RunnelError",
    "SeenIds",
    "SignatureError",
    "StreamLostError",
    "SyncRunStream",
    "Webhook",
    "delta_text",
    "message",
]
