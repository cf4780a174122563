"""Runner adapter: serves async functions as runners over ASGI, WSGI or a server of its own.

from runnel.runner import Endpoint

endpoint = Endpoint()  # the secret is in RUNNER_SECRET

@endpoint.runner("plugin:acme/echo/default", label="Echo")
async def echo(ctx):
    yield f"You said: {ctx.text}"

app = endpoint  # uvicorn main:app
"""

from . import results
from .context import Permissions
from .endpoint import Endpoint
from .failure import RunFailed
from .host import HostApi
from .models import ModelAnswer
from .results import Result
from .run import RunContext

__all__ = [
    "Endpoint",
    "HostApi",
    "ModelAnswer",
    "Permissions",
    "Result",
    "RunContext",
    "RunFailed",
    "results",
]
