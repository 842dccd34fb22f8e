"""The test modules of docs/testing.md pass as they stand, with strict settings of pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_test_module_of_the_page_passes(number: int, tmp_path: Path) -> None:
    (tmp_path / "test_plugin.py").write_text(SNIPPETS[number])
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "--strict-config"]
    command += ["-W", "error", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_every_suite_has_an_example() -> None:
    for suite in ("Planner", "Autoscaler", "Store", "StoreModel", "Platform"):
        assert any(f"({suite}Contract)" in snippet for snippet in SNIPPETS)
