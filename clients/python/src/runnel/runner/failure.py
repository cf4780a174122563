"""Failure of a run."""


class RunFailed(Exception):
    """Failure that a runner raises to end its run. `text` is for the client; codes with `host.` are reserved."""

    def __init__(self, code: str, text: str, *, retryable: bool = False) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text, self.retryable = code, text, retryable
