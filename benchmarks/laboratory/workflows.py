"""Random workflows and streams whose results are known in advance.

A task takes numbers and blocks of bytes that stand for numbers, sleeps or computes a little, and
gives a number or such a block. A block that isn't exactly what was made is noticed by who takes it.
The same functions, called here one after the other, give the result to expect.

A task may damage the process that it runs in; those of runs without such a task look whether theirs
is unharmed.
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
    """What a task does."""

    salt: int
    nap: float = 0.0
    """Seconds that it sleeps."""
    rounds: int = 0
    """Thousands of bytes that it hashes, over and over."""
    words: int = 0
    """The length of the block that it gives; 0: a number."""
    damage: str = ""
    """What it does to its process."""
    once: str = ""
    """The file that tells that it has done so; if there is none, it checks its process instead."""

    @property
    def still(self) -> Manner:
        """What gives the same without taking time."""
        return replace(self, nap=0.0, rounds=0, damage="", once="here")


def step(manner: Manner, *inputs: Value) -> Value:
    """What every task runs."""
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
    """The number that a value stands for."""
    if isinstance(value, int):
        return value
    word = bytes(value[:_WORD])
    if len(value) % _WORD or bytes(value) != word * (len(value) // _WORD):
        raise ValueError(f"a block of {len(value)} bytes was damaged on its way")
    return int.from_bytes(word, "big")


Harm = tuple[str, str]
"""The damage that some tasks of a run do, and the file that tells that one has."""


def harmed(manner: Manner, harm: Harm | None, chance: random.Random) -> Manner:
    """What a task of a run does in which some task does damage."""
    if harm is None:
        return manner
    kind, once = harm
    return replace(manner, damage=chance.choice(("", kind)), once=once)


class Sketch:
    """A workflow under construction: each task with the value that it must have."""

    def __init__(self, chance: random.Random, harm: Harm | None) -> None:
        self.chance = chance
        self._harm = harm
        self.made: list[tuple[Output[Any], Value]] = []
        self._task: Task[..., Any] = Task(step, name="step")

    def add(self, *inputs: int) -> int:
        """One more task, which takes the outputs of others; its place."""
        manner = harmed(manner_of(self.chance), self._harm, self.chance)
        sources = [self.made[place] for place in inputs]
        output = self._task(manner, *(output for output, _ in sources))
        self.made.append((output, step(manner.still, *(value for _, value in sources))))
        return len(self.made) - 1


def manner_of(chance: random.Random) -> Manner:
    """What some task does."""
    return Manner(
        salt=chance.randrange(_MODULUS),
        nap=chance.choice((0.0, chance.uniform(0.0, 0.5))),
        rounds=chance.choice((0, 0, chance.randrange(2000))),
        words=chance.choice((0, 0, 0, 20, 9_000, chance.randrange(9_000, 100_000))),
    )


def chain(sketch: Sketch) -> None:
    """One after the other."""
    place = sketch.add()
    for _ in range(sketch.chance.randint(3, 12)):
        place = sketch.add(place)


def fan(sketch: Sketch) -> None:
    """One, many, one."""
    root = sketch.add()
    sketch.add(*[sketch.add(root) for _ in range(sketch.chance.randint(4, 24))])


def tree(sketch: Sketch) -> None:
    """Many, half as many, and so on to one."""
    level = [sketch.add() for _ in range(sketch.chance.choice((4, 8, 16)))]
    while len(level) > 1:
        level = [sketch.add(*level[i : i + 2]) for i in range(0, len(level), 2)]


def diamonds(sketch: Sketch) -> None:
    """Two ways to the same task, several times."""
    place = sketch.add()
    for _ in range(sketch.chance.randint(2, 5)):
        place = sketch.add(sketch.add(place), sketch.add(place), place)


def layers(sketch: Sketch) -> None:
    """Each task takes some outputs of the layers before it."""
    chance, known = sketch.chance, [sketch.add() for _ in range(3)]
    for _ in range(chance.randint(2, 5)):
        count = chance.randint(2, 6)
        known += [sketch.add(*chance.sample(known, chance.randint(1, 3))) for _ in range(count)]


FARM = "farm"
"""What a client is asked for that is no workflow."""
SHAPES: dict[str, Callable[[Sketch], None]] = {
    "chain": chain,
    "fan": fan,
    "tree": tree,
    "diamonds": diamonds,
    "layers": layers,
}


def drawn(shape: str, seed: int, harm: Harm | None = None) -> tuple[list[Output[Any]], list[int]]:
    """A workflow's last outputs, and the numbers that they must stand for."""
    sketch = Sketch(random.Random(seed), harm)
    SHAPES[shape](sketch)
    last = sketch.made[-2:]
    return [output for output, _ in last], [number_of(value) for _, value in last]


def stream(seed: int, harm: Harm | None = None) -> tuple[list[Manner], list[int]]:
    """What goes into a farm that calls `step`, and the numbers that must come out in that order."""
    chance = random.Random(seed)
    given = [harmed(manner_of(chance), harm, chance) for _ in range(chance.randint(10, 60))]
    return given, [number_of(step(manner.still)) for manner in given]
