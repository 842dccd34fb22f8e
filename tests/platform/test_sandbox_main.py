"""What happens inside a sandbox."""

from __future__ import annotations

import subprocess
import sys

_PRINTING = """
import os, sys
from shoal.platform import sandbox_main

reading, writing = os.pipe()
os.dup2(writing, 1)
os.close(writing)
sandbox_main._open_streams()
print("ünïcode")
assert os.read(reading, 100).decode() == "ünïcode\\n"
os.close(reading)
print("to nobody")
print("x" * 100_000, flush=True)
print("done", file=sys.stderr)
"""


def test_a_task_may_print_while_its_gateway_is_killed() -> None:
    """A failed print must not fail the run.

    1. The gateway is killed, and nobody reads the sandboxes' output any more.
    2. A task prints before its sandbox ends too, and fails with a BrokenPipeError.
    3. Its worker tells the store, and the run ends with a TaskError instead of continuing.
    """
    said = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", _PRINTING], capture_output=True, text=True, timeout=60
    )
    assert (said.returncode, said.stderr) == (0, "done\n")
