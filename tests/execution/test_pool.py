"""The pool: which sandboxes are warm, and which make room."""

from hypothesis import given
from hypothesis import strategies as st

from examples_drawn import examples
from shoal.execution.pool import Acquired, Bound, Queue, WarmPool


def test_the_first_start_of_a_configuration_is_cold() -> None:
    pool: WarmPool[str] = WarmPool()
    assert pool.acquire("small", 0.0) == Acquired("cold", 1)
    assert (pool.busy, pool.idle) == (1, 0)


def test_an_idle_sandbox_of_the_same_configuration_is_reused() -> None:
    pool: WarmPool[str] = WarmPool()
    pool.acquire("small", 0.0)
    pool.release(1, 1.0)
    assert (pool.busy, pool.idle) == (0, 1)
    assert pool.acquire("small", 2.0) == Acquired("warm", 1)


def test_a_busy_sandbox_is_not_shared() -> None:
    pool: WarmPool[str] = WarmPool()
    pool.acquire("small", 0.0)
    assert pool.acquire("small", 0.0) == Acquired("cold", 2)


def test_a_sandbox_of_another_configuration_is_not_warm() -> None:
    pool: WarmPool[str] = WarmPool()
    pool.acquire("small", 0.0)
    pool.release(1, 1.0)
    assert pool.acquire("large", 2.0) == Acquired("cold", 2)


def test_the_most_recently_used_sandbox_is_reused_first() -> None:
    pool: WarmPool[str] = WarmPool()
    for _ in range(3):
        pool.acquire("small", 0.0)
    for sandbox in (2, 3, 1):
        pool.release(sandbox, 1.0)
    assert pool.acquire("small", 2.0) == Acquired("warm", 1)
    assert pool.acquire("small", 2.0) == Acquired("warm", 3)


def test_a_full_pool_has_no_sandbox() -> None:
    pool: WarmPool[str] = WarmPool(capacity=1)
    pool.acquire("small", 0.0)
    assert pool.acquire("small", 0.0) is None
    assert (pool.busy, pool.idle) == (1, 0)


def test_the_sandbox_idle_longest_makes_room_for_another_configuration() -> None:
    pool: WarmPool[str] = WarmPool(capacity=2)
    pool.acquire("small", 0.0)
    pool.acquire("small", 0.0)
    pool.release(2, 1.0)
    pool.release(1, 2.0)
    assert pool.acquire("large", 3.0) == Acquired("cold", 3, evicted=2)
    assert pool.acquire("small", 3.0) == Acquired("warm", 1)


def test_sandbox_that_was_idle_for_too_long_is_removed() -> None:
    pool: WarmPool[str] = WarmPool(idle_seconds=7.0)
    pool.acquire("small", 0.0)
    pool.acquire("small", 0.0)
    pool.release(2, 1.0)
    pool.release(1, 3.0)
    assert pool.next_expiry() == 8.0
    assert pool.expire(7.9) == []
    assert pool.expire(8.0) == [2]
    assert pool.next_expiry() == 10.0
    assert pool.acquire("small", 9.0) == Acquired("warm", 1)
    assert pool.next_expiry() is None


def test_a_sandbox_can_be_removed_whether_busy_idle_or_unknown() -> None:
    pool: WarmPool[str] = WarmPool(capacity=2)
    pool.acquire("small", 0.0)
    pool.acquire("small", 0.0)
    pool.release(2, 0.0)
    pool.remove(1)
    pool.remove(2)
    pool.remove(2)
    assert (pool.busy, pool.idle) == (0, 0)
    assert pool.acquire("small", 1.0) == Acquired("cold", 3)


def test_a_run_has_no_more_busy_sandboxes_than_allowed() -> None:
    pool: WarmPool[str] = WarmPool()
    one, other = Bound("run-1", 1), Bound("run-2", 1)
    assert pool.acquire("small", 0.0, one) == Acquired("cold", 1)
    assert pool.acquire("small", 0.0, one) is None
    assert pool.acquire("small", 0.0, other) == Acquired("cold", 2)
    pool.release(1, 1.0)
    assert pool.acquire("small", 1.0, one) == Acquired("warm", 1)
    pool.remove(1)
    assert pool.acquire("small", 1.0, one) == Acquired("cold", 3)


def test_only_the_capacity_bounds_sandboxes_without_a_run() -> None:
    pool: WarmPool[str] = WarmPool(capacity=2)
    assert pool.acquire("small", 0.0) is not None
    assert pool.acquire("small", 0.0) is not None
    assert pool.acquire("small", 0.0) is None


def waiting(pool: WarmPool[str], jobs: str) -> Queue[str, str]:
    """Create a queue of invocations; the first letter names the run, which may have two workers."""
    queue: Queue[str, str] = Queue(pool, lambda _: "small", lambda job: Bound(job[0], 2))
    queue.extend(jobs.split())
    return queue


def test_the_queue_is_first_in_first_out_while_there_is_room() -> None:
    queue = waiting(WarmPool(capacity=3), "a1 b1 a2 b2")
    served = [queue.serve(0.0) for _ in range(4)]
    assert [found[0] for found in served if found] == ["a1", "b1", "a2"]
    assert served[3] is None
    assert list(queue) == ["b2"]


def test_a_run_at_its_worker_limit_lets_others_pass() -> None:
    pool: WarmPool[str] = WarmPool()
    queue = waiting(pool, "a1 a2 a3 a4 b1")
    assert [found[0] for found in iter(lambda: queue.serve(0.0), None)] == ["a1", "a2", "b1"]
    pool.release(2, 1.0)
    assert [found[0] for found in iter(lambda: queue.serve(1.0), None)] == ["a3"]
    assert len(queue) == 1


def test_an_item_that_is_put_back_is_served_next() -> None:
    pool: WarmPool[str] = WarmPool(capacity=1)
    queue = waiting(pool, "a1 b1")
    served = queue.serve(0.0)
    assert served == ("a1", Acquired("cold", 1))
    pool.remove(1)
    queue.put_back("a1")
    assert queue.serve(0.0) == ("a1", Acquired("cold", 2))
    assert list(queue) == ["b1"]


def test_dropped_items_leave_the_queue() -> None:
    queue = waiting(WarmPool(), "a1 b1 a2")
    queue.drop(lambda job: job.startswith("a"))
    assert (len(queue), list(queue)) == (1, ["b1"])
    queue.drop(lambda job: True)
    assert queue.serve(0.0) is None


@given(released=st.floats(0, 2e9), idle_seconds=st.floats(0, 1e6))
def test_something_expires_at_the_next_expiry(released: float, idle_seconds: float) -> None:
    """A thread that wakes up at that time must find something, or it would wake up forever."""
    pool: WarmPool[str] = WarmPool(idle_seconds=idle_seconds)
    pool.acquire("small", 0.0)
    pool.release(1, released)
    expiry = pool.next_expiry()
    assert expiry is not None
    assert pool.expire(expiry) == [1]


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), st.sampled_from(["small", "large"])),
        st.tuples(st.sampled_from(["release", "remove"]), st.integers(0, 9)),
        st.tuples(st.just("pass"), st.sampled_from([0.5, 3.0, 10.0])),
    ),
    max_size=40,
)


@examples(500)
@given(capacity=st.integers(1, 4), steps=_steps)
def test_the_pools_invariants_hold(
    capacity: int, steps: list[tuple[str, str | int | float]]
) -> None:
    pool: WarmPool[str] = WarmPool(capacity, idle_seconds=7.0)
    now, highest = 0.0, 0
    busy: dict[int, str] = {}
    idle: dict[int, tuple[str, float]] = {}
    for step, argument in steps:
        match step, argument:
            case "acquire", str(kind):
                acquired = pool.acquire(kind, now)
                if acquired is None:
                    assert len(busy) == capacity
                    continue
                if acquired.start == "warm":
                    assert idle.pop(acquired.sandbox)[0] == kind
                else:
                    assert kind not in [known for known, _ in idle.values()]
                    assert acquired.sandbox > highest
                    highest = acquired.sandbox
                if acquired.evicted is not None:
                    oldest = min(since for _, since in idle.values())
                    assert len(busy) + len(idle) == capacity
                    assert idle.pop(acquired.evicted)[1] == oldest
                busy[acquired.sandbox] = kind
            case "release", int(number) if busy:
                sandbox = list(busy)[number % len(busy)]
                pool.release(sandbox, now)
                idle[sandbox] = (busy.pop(sandbox), now)
            case "remove", int(sandbox):
                pool.remove(sandbox)
                busy.pop(sandbox, None)
                idle.pop(sandbox, None)
            case "pass", float(seconds):
                now += seconds
                expired = pool.expire(now)
                assert set(expired) == {s for s, (_, since) in idle.items() if since + 7.0 <= now}
                for sandbox in expired:
                    del idle[sandbox]
        assert (pool.busy, pool.idle) == (len(busy), len(idle))
        assert len(busy) + len(idle) <= capacity
