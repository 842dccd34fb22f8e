"""A short run of the fault laboratory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

CHAOS = Path(__file__).parents[2] / "benchmarks" / "chaos.py"


@pytest.mark.parametrize("faults", ["kill,pause,drop,throttle", "gateway,damage"])
def test_results_are_right_and_nothing_is_left_under_random_faults(faults: str) -> None:
    options = ["--minutes", "0.15", "--seed", "7", "--clients", "2", "--faults", faults]
    done = subprocess.run(
        [sys.executable, str(CHAOS), *options], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("clean\n")
