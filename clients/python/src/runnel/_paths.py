"""Paths of the gateway's API."""

import urllib.parse


def segment(text: str) -> str:
    """Segment of a path, percent-encoded. Dot segments would leave the path."""
    if text in ("", ".", ".."):
        raise ValueError(f"{text!r} is no id")
    return urllib.parse.quote(text, safe="")
