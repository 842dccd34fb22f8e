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
from shoal.testing import StoreModelContract
from shoal.testing.store_model_contract import compare
from shoal.testing.store_operations import REPEATABLE, Operation, openings, operations

pytestmark = pytest.mark.real


class RepeatingStore(RedisStore):
    """Repeats operations, as after a dropped connection, and goes by the second answer."""

    def _script(self, name: str, *args: Any, **options: Any) -> Any:
        if name in REPEATABLE:
            with suppress(RunOver):
                super()._script(name, *args, **options)
        return super()._script(name, *args, **options)


class TestEmbeddedServer(StoreModelContract):
    @pytest.fixture
    def store(self, embedded_url: str) -> Iterator[Store]:
        store = RedisStore(embedded_url)
        yield store
        store.disconnect()


@pytest.fixture(scope="module")
def repeating(embedded_url: str) -> Iterator[RedisStore]:
    store = RepeatingStore(embedded_url)
    yield store
    store.disconnect()


@settings(max_examples=30)
@given(opening=openings, said=operations("twin"))
def test_a_server_answers_repeated_operations_like_the_model_answers_one(
    repeating: RedisStore, opening: Opening, said: list[Operation]
) -> None:
    compare(repeating, opening, said, [])
