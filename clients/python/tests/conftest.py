import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without waiting for the backoff."""
    monkeypatch.setattr("runnel._retry._FIRST_PAUSE", 0.001)
    monkeypatch.setattr("runnel._retry._LONGEST_PAUSE", 0.01)
