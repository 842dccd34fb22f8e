"""A few seconds of what `make fuzz` does at length."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from fuzzing import DOORS, PARSERS, Gateway, gateway

SEED = 1


@pytest.mark.parametrize("name", PARSERS)
def test_whatever_is_read_gives_a_result_or_an_error_of_shoal_s(name: str) -> None:
    tally = PARSERS[name](300, SEED)
    assert tally.inputs >= 300
    assert tally.crashes == []


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Gateway]:
    with gateway() as made:
        yield made


@pytest.mark.real
@pytest.mark.parametrize("name", DOORS)
@pytest.mark.filterwarnings("default")  # schemathesis warns of what it needs itself
def test_whatever_comes_over_http_is_not_the_gateway_s_mistake(fuzzed: Gateway, name: str) -> None:
    if name == "interface" and importlib.util.find_spec("schemathesis") is None:
        pytest.skip("it needs the extra fuzz")
    tally = DOORS[name](50, SEED, fuzzed.url)
    assert tally.inputs > 0
    assert (tally.crashes, tally.failures) == ([], 0)
    assert "Traceback" not in fuzzed.log.read_text()
