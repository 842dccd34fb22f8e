"""Fixtures for tests of faults, which also use the random scenarios of the machine's tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from standing_gateway import StandingGateway

sys.path.append(str(Path(__file__).parents[1] / "execution"))


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[StandingGateway]:
    """A `shoal gateway` in a separate process."""
    gateway = StandingGateway(tmp_path)
    yield gateway
    gateway.end()
