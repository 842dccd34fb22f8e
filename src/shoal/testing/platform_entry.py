"""What sandboxes do in the contract suite of platforms: what a start's part says, noted in a file.

A part is a word and its argument, such as `await go`. A zygote imports this module, so it is light.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TASK = 7
"""The number of the task that every worker says it is running."""
_LONGEST = 60.0

Action = Callable[[Path, str], bool | None]
"""Takes the folder of the notes and the argument; returns False if the sandbox must not be reused.
"""


def act(message: Any, running: Any) -> bool:
    """Run a worker: the entry that sandboxes call."""
    return perform(message, running, ACTIONS)


def perform(message: Any, running: Any, actions: Mapping[str, Action]) -> bool:
    """Do what the part says, and note its beginning and its end."""
    folder = Path(message.context.code.folder)
    word, _, argument = (message.start.part or b"pass").decode().partition(" ")
    note(message, "began")
    running.set(0, TASK)
    reusable = actions[word](folder, argument)
    running.clear(0)
    note(message, "ended")
    return reusable is not False


def note(message: Any, event: str, **facts: Any) -> None:
    """Append a line to the notes, in one write."""
    line = {
        "event": event,
        "run": message.run,
        "worker": message.worker,
        "sandbox": threading.get_native_id(),
        "start": message.sandbox,
        **facts,
    }
    path = Path(message.context.code.folder) / "notes"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


def read_notes(folder: Path, event: str = "") -> list[dict[str, Any]]:
    """Return what has been noted so far; all of it, or one kind of event."""
    path = folder / "notes"
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [line for line in found if event in ("", line["event"])]


def await_file(folder: Path, name: str) -> None:
    """Wait until a file exists, for a minute at most."""
    deadline = time.monotonic() + _LONGEST
    while not (folder / name).exists() and time.monotonic() < deadline:
        time.sleep(0.002)


def _print(folder: Path, text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stderr.write(f"{text.upper()}\n")


def _fail(folder: Path, text: str) -> None:
    raise RuntimeError(text)


def _spoil(folder: Path, text: str) -> bool:
    return False


def _pass(folder: Path, text: str) -> None:
    """Do nothing."""


ACTIONS: Mapping[str, Action] = {
    "await": await_file,
    "fail": _fail,
    "pass": _pass,
    "print": _print,
    "spoil": _spoil,
}
