"""Snippets run unchanged: all of the README's, and those of other pages that import something.

On other pages, a snippet without an import belongs to the one before it, or to the text.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets(page: Path) -> list[str]:
    """Return the snippets of a page that must run by themselves."""
    found = SNIPPET.findall(page.read_text(encoding="utf-8"))
    if page.name == "README.md":
        return found
    return [snippet for snippet in found if re.match(r"(from|import) ", snippet)]


CASES = [
    pytest.param(snippet, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, snippet in enumerate(snippets(page))
]


def test_there_are_snippets() -> None:
    assert len(snippets(ROOT / "README.md")) >= 5
    assert len(CASES) > len(snippets(ROOT / "README.md"))


@pytest.mark.parametrize("snippet", CASES)
def test_a_snippet_runs_as_it_stands(snippet: str, tmp_path: Path) -> None:
    script = tmp_path / "snippet.py"
    script.write_text(snippet, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
