"""The test modules of the docs pass as they stand, with strict settings of pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
ENGINES = ROOT / "docs" / "engines" / "index.md"


def snippets(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


SNIPPETS = snippets(ROOT / "docs" / "testing.md")


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_test_module_of_the_page_passes(number: int, tmp_path: Path) -> None:
    (tmp_path / "test_plugin.py").write_text(SNIPPETS[number])
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "--strict-config"]
    command += ["-W", "error", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_every_suite_has_an_example() -> None:
    for suite in (
        "Planner",
        "Autoscaler",
        "Store",
        "StoreModel",
        "Platform",
        "Engine",
        "FunctionEngine",
    ):
        assert any(f"({suite}Contract)" in snippet for snippet in SNIPPETS)


def test_an_engine_is_written_in_fifty_lines() -> None:
    """The page shows the module as it is, and the suite's example for it."""
    (included,) = [each for each in snippets(ENGINES) if "--8<--" in each]
    module = ROOT / included.split('"')[1]
    lines = [line for line in module.read_text().splitlines() if line.strip()]
    assert len(lines) <= 50
    assert "fifty, without blank lines" in ENGINES.read_text()
    assert snippets(ENGINES)[-1] in SNIPPETS
