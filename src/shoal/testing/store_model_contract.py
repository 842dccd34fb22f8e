"""`StoreModelContract`: a store answers random operations like the model."""

from __future__ import annotations

import secrets

from shoal.storage.base import Opening, Store
from shoal.testing.hypothesis_required import hypothesis
from shoal.testing.memory_store import MemoryStore
from shoal.testing.pytest_required import pytest
from shoal.testing.store_operations import Client, Operation, endings, openings, operations
from shoal.types import RunId


def compare(store: Store, opening: Opening, said: list[Operation], later: list[Operation]) -> None:
    """Carry the same operations out on the model and on a store, some after the run has ended."""
    run = RunId(f"test-{secrets.token_hex(6)}")
    model, tested = Client(MemoryStore(), run, opening), Client(store, run, opening)
    model.open()
    tested.open()
    try:
        for operation in said:
            assert tested.answer(operation) == model.answer(operation), operation
        assert tested.state() == model.state()
        for operation in later:
            assert tested.answer(operation) == model.answer(operation), operation
        assert tested.state() == model.state()
    finally:
        store.close(run, ())


class StoreModelContract:
    """Compares a store with `MemoryStore` on random sequences of operations.

    Subclass it in a test module and override the fixture `store`. It needs Hypothesis.
    """

    @pytest.fixture
    def store(self) -> Store:
        """Return the store."""
        raise NotImplementedError("Override the fixture `store` of StoreModelContract.")

    @hypothesis.settings(
        max_examples=40,
        deadline=None,
        suppress_health_check=[
            hypothesis.HealthCheck.differing_executors,
            hypothesis.HealthCheck.function_scoped_fixture,
            hypothesis.HealthCheck.too_slow,
        ],
    )
    @hypothesis.given(
        opening=openings,
        said=operations(),
        ending=endings,
        later=operations(least=0, most=5),
    )
    def test_a_store_answers_like_the_model(
        self,
        store: Store,
        opening: Opening,
        said: list[Operation],
        ending: Operation,
        later: list[Operation],
    ) -> None:
        compare(store, opening, said, [ending, *later])
