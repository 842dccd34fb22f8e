"""Leases and losses, at times that the tests choose."""

from __future__ import annotations

from shoal.execution.lease_model import Leases, Losses
from shoal.types import WorkerId

w0, w1 = WorkerId("w0"), WorkerId("w1")


def test_a_granted_lease_begins_when_somebody_looks() -> None:
    leases = Leases(10.0, 5.0)
    leases.grant(w0)
    assert leases.expired(100.0) == []
    assert leases.expired(115.0) == []
    assert leases.expired(115.1) == [w0]


def test_a_claimed_start_may_wait_for_its_platform() -> None:
    leases = Leases(10.0, 5.0)
    leases.begin(w0, 0.0)
    assert leases.expired(15.0) == []
    leases.renew(w0, 15.0)
    assert leases.expired(25.0) == []
    assert leases.expired(25.1) == [w0]


def test_an_expired_lease_stays_until_it_is_ended_or_begins_again() -> None:
    leases = Leases(10.0)
    leases.begin(w0, 0.0)
    leases.begin(w1, 0.0)
    assert [leases.expired(10.1) for _ in range(2)] == [[w0, w1]] * 2
    leases.begin(w0, 10.1)
    leases.end(w1)
    assert leases.expired(20.0) == []
    assert w0 in leases
    assert w1 not in leases
    leases.end(w1)


def test_all_leases_end_together() -> None:
    leases = Leases(10.0)
    leases.grant(w0)
    leases.begin(w1, 0.0)
    assert leases.end_all() == [w0, w1]
    assert leases.end_all() == []


def test_each_cause_may_be_followed_by_so_many_restarts() -> None:
    losses = Losses(2)
    assert [losses.add("memory") for _ in range(4)] == [True, True, False, False]
    assert losses.add(w0)
    assert not Losses(0).add(w0)
