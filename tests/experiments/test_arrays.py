"""Workflows that need numpy say so where it isn't installed, and the others don't need it."""

import importlib
import subprocess
import sys

import pytest

from shoal.errors import UsageError


@pytest.mark.parametrize("workflow", ["matrix_multiplication", "image_transformation"])
def test_without_numpy_the_extra_is_told(workflow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    for module in ("arrays", workflow):
        monkeypatch.delitem(sys.modules, f"shoal.experiments.{module}", raising=False)
    with pytest.raises(UsageError, match=r"needs numpy: pip install 'shoal\[experiments\]'"):
        importlib.import_module(f"shoal.experiments.{workflow}")


@pytest.mark.parametrize("workflow", ["text_analysis", "tree_reduction", "word_count"])
def test_without_numpy_the_others_work(workflow: str) -> None:
    code = f"import sys; sys.modules['numpy'] = None; import shoal.experiments.{workflow}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
