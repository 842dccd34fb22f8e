"""Differential tests: scripts on a real server answer like the model, whatever is said to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings

from shoal.errors import RunOver
from shoal.storage.base import Opening, Store
from shoal.storage.redis import RedisStore
from shoal.storage.scripts import Script, load
from shoal.testing import StoreModelContract
from shoal.testing.store_model_contract import compare
from shoal.testing.store_operations import REPEATABLE, Operation, openings, operations

pytestmark = pytest.mark.real


_REPEATABLE = {load(f"run/{name.replace(' ', '_')}"): name for name in REPEATABLE}


class RepeatingStore(RedisStore):
    """Repeats operations, as after a dropped connection, and goes by the second answer."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.repeated: set[str] = set()
        """The names of operations that were repeated."""

    def _script(self, script: Script, *args: Any, **options: Any) -> Any:
        if script in _REPEATABLE:
            self.repeated.add(_REPEATABLE[script])
            with suppress(RunOver):
                super()._script(script, *args, **options)
        return super()._script(script, *args, **options)


class TestEmbeddedServer(StoreModelContract):
    @pytest.fixture
    def store(self, embedded_url: str) -> Iterator[Store]:
        store = RedisStore(embedded_url)
        yield store
        store.disconnect()


@pytest.fixture
def repeating(embedded_url: str) -> Iterator[RepeatingStore]:
    store = RepeatingStore(embedded_url)
    yield store
    store.disconnect()


def test_a_server_answers_repeated_operations_like_the_model_answers_one(
    repeating: RepeatingStore,
) -> None:
    @settings(max_examples=30)
    @given(opening=openings, said=operations("twin"))
    def answers_like_the_model(opening: Opening, said: list[Operation]) -> None:
        compare(repeating, opening, said, [])

    answers_like_the_model()
    assert repeating.repeated == set(REPEATABLE)
