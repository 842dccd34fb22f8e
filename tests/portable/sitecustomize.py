"""Python runs this at startup if this folder is on its path; see `linux_hidden.py`."""

import importlib.util
from pathlib import Path

spec = importlib.util.spec_from_file_location(
    "linux_hidden", Path(__file__).parents[1] / "linux_hidden.py"
)
assert spec is not None
assert spec.loader is not None
linux_hidden = importlib.util.module_from_spec(spec)
spec.loader.exec_module(linux_hidden)
linux_hidden.install()
