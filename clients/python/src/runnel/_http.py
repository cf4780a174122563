"""HTTP clients with the proxies of the environment."""

from __future__ import annotations

import ipaddress
import urllib.parse
import urllib.request
from typing import Any

import httpx

from .errors import RunnelError


def http_client(url: str, **options: Any) -> httpx.AsyncClient:
    """Client for one gateway. A loopback gateway is called directly, as is one of NO_PROXY."""
    host = urllib.parse.urlsplit(url).hostname or ""
    if _is_loopback(host) or urllib.request.proxy_bypass(host):
        # Without the environment, httpx ignores SSL_CERT_FILE too, unless it gets the context.
        if url.startswith("https:"):
            options.setdefault("verify", httpx.create_ssl_context())
        return httpx.AsyncClient(trust_env=False, **options)
    try:
        return httpx.AsyncClient(**options)
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        # A proxy's URL may have a password, so only its variable is named.
        proxies = urllib.request.getproxies()
        names = [f"{name.upper()}_PROXY" for name in ("all", "https", "http") if _is_unusable(proxies.get(name))]
        if not names:
            raise
        raise RunnelError(
            f"the proxy in {', '.join(names)} cannot be used: install httpx[socks] for a SOCKS proxy, "
            f"correct or unset the variable, or add {host} to NO_PROXY"
        ) from error


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_unusable(proxy: str | None) -> bool:
    if proxy is None:
        return False
    try:
        httpx.AsyncHTTPTransport(proxy=proxy if "://" in proxy else f"http://{proxy}")
    except (ImportError, ValueError, httpx.InvalidURL):
        return True
    return False
