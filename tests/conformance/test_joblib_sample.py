"""A sample of joblib's own tests passes on Shoal; `make conformance-joblib` runs them all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

CONFORMANCE = Path(__file__).with_name("joblib_conformance.py")


def test_a_sample_of_joblibs_own_tests_passes() -> None:
    done = subprocess.run(
        [sys.executable, CONFORMANCE, "--one-in", "24"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert "calls were run on Shoal" in done.stdout
