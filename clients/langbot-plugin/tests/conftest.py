import typing

import pytest

from fake_gateway import FakeGateway


@pytest.fixture
def gateway() -> typing.Iterator[FakeGateway]:
    made = FakeGateway()
    yield made
    made.close()


@pytest.fixture
def config(gateway: FakeGateway) -> dict[str, typing.Any]:
    return {"url": gateway.url, "api-key": "rnl_key", "source": "langbot", "patience": 5}
