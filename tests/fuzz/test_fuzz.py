"""A few seconds of `make fuzz`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from fuzzing import DOORS, PARSERS, Gateway, gateway

SEED = 1


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_every_parser_returns_a_result_or_raises_a_shoal_error(name: str) -> None:
    tally = PARSERS[name](300, SEED)
    assert tally.inputs >= 300
    assert tally.crashes == []


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Gateway]:
    with gateway() as made:
        yield made


@pytest.mark.real
@pytest.mark.parametrize("name", DOORS)
@pytest.mark.filterwarnings("default")  # schemathesis uses deprecated features itself
def test_no_http_input_causes_a_server_error(fuzzed: Gateway, name: str) -> None:
    if name == "interface" and importlib.util.find_spec("schemathesis") is None:
        pytest.skip("it needs the extra fuzz")
    tally = DOORS[name](50, SEED, fuzzed.url)
    assert tally.inputs > 0
    assert (tally.crashes, tally.failures) == ([], 0)
    assert "Traceback" not in fuzzed.log.read_text()
