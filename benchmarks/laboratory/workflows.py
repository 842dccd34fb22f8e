"""Generate random workflows and streams with known results.

A task takes numbers and blocks of bytes that represent numbers, sleeps or computes a little, and
returns a number or such a block. A task detects a block that differs from the one that was made.
The expected result comes from calling the same functions in sequence.

A task may damage its process; tasks of runs without such a task check that theirs is undamaged.
"""

from __future__ import annotations

import faulthandler
import hashlib
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from laboratory.damages import check_process, damage
from shoal.workflow import Output, Task

faulthandler.register(signal.SIGUSR1, all_threads=True)  # in workers, too: see `state.py`

_MODULUS = 2**61 - 1
_WORD = 8

Value = int | bytes


@dataclass(frozen=True, slots=True)
class Manner:
    """The work of a task."""

    salt: int
    nap: float = 0.0
    """How many seconds it sleeps."""
    rounds: int = 0
    """How many kilobytes it hashes, repeatedly."""
    words: int = 0
    """The length of the block that it returns; 0 for a number."""
    damage: str = ""
    """The damage to its process."""
    once: str = ""
    """The file that shows that the damage was done; without one, the task checks its process."""

    @property
    def still(self) -> Manner:
        """Return work with the same result that takes no time."""
        return replace(self, nap=0.0, rounds=0, damage="", once="here")


def step(manner: Manner, *inputs: Value) -> Value:
    """Do the work of a task."""
    if not manner.once:
        check_process()
        print("unharmed")
    number = manner.salt
    for place, value in enumerate(inputs, 1):
        number = (number * 31 + place * number_of(value)) % _MODULUS
    time.sleep(manner.nap)
    block = bytes(1000)
    for _ in range(manner.rounds):
        block = hashlib.blake2b(block).digest() * 16
    if manner.damage:
        damage(manner.damage, manner.once)
    return number.to_bytes(_WORD, "big") * manner.words if manner.words else number


def number_of(value: Value) -> int:
    """Return the number that a value represents."""
    if isinstance(value, int):
        return value
    word = bytes(value[:_WORD])
    if len(value) % _WORD or bytes(value) != word * (len(value) // _WORD):
        raise ValueError(f"a block of {len(value)} bytes was damaged on its way")
    return int.from_bytes(word, "big")


Harm = tuple[str, str]
"""The damage that tasks of a run do, and the file that shows that one has."""


def harmed(manner: Manner, harm: Harm | None, chance: random.Random) -> Manner:
    """Return the work of a task in a run with damage."""
    if harm is None:
        return manner
    kind, once = harm
    return replace(manner, damage=chance.choice(("", kind)), once=once)


class Sketch:
    """A workflow under construction, with the expected value of each task."""

    def __init__(self, chance: random.Random, harm: Harm | None) -> None:
        self.chance = chance
        self._harm = harm
        self.made: list[tuple[Output[Any], Value]] = []
        self._task: Task[..., Any] = Task(step, name="step")

    def add(self, *inputs: int) -> int:
        """Add a task that takes the outputs of others, and return its index."""
        manner = harmed(manner_of(self.chance), self._harm, self.chance)
        sources = [self.made[place] for place in inputs]
        output = self._task(manner, *(output for output, _ in sources))
        self.made.append((output, step(manner.still, *(value for _, value in sources))))
        return len(self.made) - 1


def manner_of(chance: random.Random) -> Manner:
    """Draw the work of a task."""
    return Manner(
        salt=chance.randrange(_MODULUS),
        nap=chance.choice((0.0, chance.uniform(0.0, 0.5))),
        rounds=chance.choice((0, 0, chance.randrange(2000))),
        words=chance.choice((0, 0, 0, 20, 9_000, chance.randrange(9_000, 100_000))),
    )


def chain(sketch: Sketch) -> None:
    """Build a chain."""
    place = sketch.add()
    for _ in range(sketch.chance.randint(3, 12)):
        place = sketch.add(place)


def fan(sketch: Sketch) -> None:
    """Build a fan-out and fan-in."""
    root = sketch.add()
    sketch.add(*[sketch.add(root) for _ in range(sketch.chance.randint(4, 24))])


def tree(sketch: Sketch) -> None:
    """Build a tree reduction."""
    level = [sketch.add() for _ in range(sketch.chance.choice((4, 8, 16)))]
    while len(level) > 1:
        level = [sketch.add(*level[i : i + 2]) for i in range(0, len(level), 2)]


def diamonds(sketch: Sketch) -> None:
    """Build a chain of diamonds."""
    place = sketch.add()
    for _ in range(sketch.chance.randint(2, 5)):
        place = sketch.add(sketch.add(place), sketch.add(place), place)


def layers(sketch: Sketch) -> None:
    """Build random layers; each task takes some outputs of earlier layers."""
    chance, known = sketch.chance, [sketch.add() for _ in range(3)]
    for _ in range(chance.randint(2, 5)):
        count = chance.randint(2, 6)
        known += [sketch.add(*chance.sample(known, chance.randint(1, 3))) for _ in range(count)]


FARM = "farm"
"""An order for a client other than a workflow."""
SHAPES: dict[str, Callable[[Sketch], None]] = {
    "chain": chain,
    "fan": fan,
    "tree": tree,
    "diamonds": diamonds,
    "layers": layers,
}


def drawn(shape: str, seed: int, harm: Harm | None = None) -> tuple[list[Output[Any]], list[int]]:
    """Return a workflow's last outputs, and the numbers that they must represent."""
    sketch = Sketch(random.Random(seed), harm)
    SHAPES[shape](sketch)
    last = sketch.made[-2:]
    return [output for output, _ in last], [number_of(value) for _, value in last]


def stream(seed: int, harm: Harm | None = None) -> tuple[list[Manner], list[int]]:
    """Return the inputs of a farm that calls `step`, and the expected results in order."""
    chance = random.Random(seed)
    given = [harmed(manner_of(chance), harm, chance) for _ in range(chance.randint(10, 60))]
    return given, [number_of(step(manner.still)) for manner in given]
