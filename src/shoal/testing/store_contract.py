"""`StoreContract`: what workers and clients rely on in every store."""

from __future__ import annotations

import secrets

from shoal.storage.base import Store
from shoal.testing.pytest_required import pytest
from shoal.testing.store_clock import StoreClocks
from shoal.testing.store_examples import Connect
from shoal.testing.store_flexible import StoreFlexible
from shoal.testing.store_losses import StoreLosses
from shoal.testing.store_mail import StoreMail
from shoal.testing.store_marks import StoreMarks
from shoal.testing.store_optimizations import StoreOptimizations
from shoal.testing.store_outputs import StoreOutputs
from shoal.testing.store_runs import StoreRuns
from shoal.types import RunId


class StoreContract(
    StoreRuns,
    StoreOutputs,
    StoreMarks,
    StoreMail,
    StoreLosses,
    StoreFlexible,
    StoreOptimizations,
    StoreClocks,
):
    """Tests that a store follows the rules of `shoal.storage.base.Store`.

    Subclass it in a test module and override the fixture `connect`.
    """

    @pytest.fixture
    def connect(self) -> Connect:
        """Return a function that connects to the store, as each process of a run does.

        All stores that it returns are the same store. The tests use new runs, so the fixture
        may connect to a server that serves many tests.
        """
        raise NotImplementedError("Override the fixture `connect` of StoreContract.")

    @pytest.fixture
    def store(self, connect: Connect) -> Store:
        """Connect to the store."""
        return connect()

    @pytest.fixture
    def run(self) -> RunId:
        """Return the id of a new run."""
        return RunId(f"test-{secrets.token_hex(6)}")
