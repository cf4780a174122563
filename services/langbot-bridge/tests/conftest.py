import typing

import pytest

from bridge_process import PLUGINS, Bridge, bridge
from fake_gateway import FakeGateway


@pytest.fixture(scope="session")
def probe() -> typing.Iterator[Bridge]:
    """One bridge with the plugin of the tests; runs are independent of each other."""
    with bridge(str(PLUGINS / "probe"), BRIDGE_KEY="opens-sesame", OTHER_KEY="stays-here") as started:
        yield started


@pytest.fixture
def gateway() -> typing.Iterator[FakeGateway]:
    made = FakeGateway()
    yield made
    made.close()
