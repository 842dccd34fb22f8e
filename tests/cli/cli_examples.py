"""A pipeline for tests of the command line, and a command's output."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

PIPELINE = """
import os
import shoal

@shoal.task
def add(*numbers):
    print("adding", *numbers)
    return sum(numbers)

@shoal.task
def broken():
    raise ValueError("on purpose")

@shoal.task
def marked():
    raise ValueError("[/bold] of [red]")

def total(first, second=10, *, third=100):
    return add(add(first), second, third)

def nothing():
    return 7

def raising():
    return 1 / 0

class Holder:
    output = add(4, 5)

output = add(add(1), 2)
failing = add(broken())
marked_up = add(marked())
several = [add(1), add(2, 3)]
both_of_one = (add(1),)
mixed = [add(1), 2]

def both(first):
    return [add(first), add(5)]

pid = shoal.task(os.getpid, name="pid")()
number = 3
"""


@dataclass
class Said:
    """A command's exit code and output."""

    code: int
    out: str
    err: str


Shoal = Callable[..., Said]


def plain(text: str) -> str:
    """Return the text without terminal escapes."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def run_of(said: Said) -> str:
    """Return the id of the run that a command printed."""
    found = re.search(r"shoal show (\S+)`", said.out + said.err)
    assert found is not None
    return found[1]
