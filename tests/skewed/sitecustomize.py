"""Python runs this when it starts with this folder on its path: `skewed_clock.py` tells why."""

import importlib.util
from pathlib import Path

spec = importlib.util.spec_from_file_location(
    "skewed_clock", Path(__file__).parents[1] / "skewed_clock.py"
)
assert spec is not None
assert spec.loader is not None
skewed_clock = importlib.util.module_from_spec(spec)
spec.loader.exec_module(skewed_clock)
skewed_clock.install()
