"""What tests of faults share; the random scenarios of the machine's own tests serve here too."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from standing_gateway import StandingGateway

sys.path.append(str(Path(__file__).parents[1] / "execution"))


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[StandingGateway]:
    """A `shoal gateway` of its own process."""
    gateway = StandingGateway(tmp_path)
    yield gateway
    gateway.end()
