"""`Workflow`: reading a graph off its outputs, and its fingerprint."""

import os
import random
import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass
from enum import Enum
from functools import cache
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.errors import UsageError, WorkflowError
from shoal.workflow import Output, Ref, Task, Workflow, task


@cache
def named(name: str) -> Task[..., Any]:
    @task(name=name)
    def nothing(*args: Any, **kwargs: Any) -> None: ...

    return nothing


a, b, c, f = named("a"), named("b"), named("c"), named("f")


def fingerprint(*outputs: Output[Any]) -> str:
    return Workflow.of(*outputs).fingerprint()


def test_a_call_without_outputs_is_a_workflow_of_one() -> None:
    workflow = Workflow.of(f(1, [2], three={3}))
    (call,) = workflow.calls.values()
    assert (call.task, call.args, call.kwargs) == (f, (1, [2]), {"three": {3}})
    assert (call.refs, call.nested) == ({}, ())
    assert workflow.upstream == {"f#0": ()}
    assert workflow.sinks == ("f#0",)
    assert len(workflow) == 1


def test_outputs_can_be_positional_and_named_arguments() -> None:
    workflow = Workflow.of(f(1, a(), x=b(), y=2))
    call = workflow.calls["f#0"]
    assert call.args == (1, None)
    assert call.kwargs == {"x": None, "y": 2}
    assert call.refs == {1: "a#0", "x": "b#0"}
    assert call.nested == ()
    assert workflow.upstream["f#0"] == ("a#0", "b#0")


@pytest.mark.parametrize(
    ("holding", "held"),
    [
        (lambda out: [out, 1], [Ref("a#0"), 1]),
        (lambda out: (0, out), (0, Ref("a#0"))),
        (lambda out: {"k": out, 2: 3}, {"k": Ref("a#0"), 2: 3}),
        (lambda out: [{"k": (0, [out])}, {1}], [{"k": (0, [Ref("a#0")])}, {1}]),
    ],
    ids=["list", "tuple", "dict", "nested"],
)
def test_outputs_can_be_inside_containers(holding: Any, held: Any) -> None:
    argument = holding(a())
    workflow = Workflow.of(f(7, argument, x=argument))
    call = workflow.calls["f#0"]
    assert call.args == (7, held)
    assert call.kwargs == {"x": held}
    assert call.refs == {}
    assert call.nested == (1, "x")
    assert workflow.upstream["f#0"] == ("a#0",)


def test_reading_outputs_leaves_them_and_their_containers_as_they_are() -> None:
    inner = a()
    argument = [inner, {"k": inner}]
    outer = f(inner, argument, x=inner, y=argument)
    assert Workflow.of(outer) == Workflow.of(outer)
    assert argument == [inner, {"k": inner}]


def test_a_container_of_constants_is_not_copied() -> None:
    argument = [[1], {"k": 2}]
    call = Workflow.of(f(argument, a())).calls["f#0"]
    assert call.args[0] is argument
    assert call.nested == ()


def test_upstream_has_each_task_once_in_the_order_of_the_arguments() -> None:
    one, two, three = a(), b(), c()
    workflow = Workflow.of(f(two, [three, one, two], one, x={"k": f(), "j": c()}, y=two))
    assert workflow.upstream["f#1"] == ("b#0", "c#0", "a#0", "f#0", "c#1")
    assert workflow.calls["f#1"].refs == {0: "b#0", 2: "a#0", "y": "b#0"}


def test_an_output_used_twice_in_a_call_is_one_task() -> None:
    output = a()
    workflow = Workflow.of(f(output, output, x=output))
    assert list(workflow.calls) == ["a#0", "f#0"]
    assert workflow.calls["f#0"].refs == {0: "a#0", 1: "a#0", "x": "a#0"}


def test_equal_calls_are_two_tasks() -> None:
    assert list(Workflow.of(f(a(1), a(1))).calls) == ["a#0", "a#1", "f#0"]


def test_several_sinks_share_their_upstream_tasks() -> None:
    shared = a()
    workflow = Workflow.of(b(shared), c(shared))
    assert list(workflow.calls) == ["a#0", "b#0", "c#0"]
    assert workflow.sinks == ("b#0", "c#0")
    assert workflow.name == "c"


def test_sinks_keep_their_order_and_may_repeat() -> None:
    inner = a()
    outer = b(inner)
    assert Workflow.of(outer, inner, outer).sinks == ("b#0", "a#0", "b#0")


def test_only_what_the_sinks_need_is_part_of_the_workflow() -> None:
    shared = a()
    b(shared)
    assert list(Workflow.of(c(shared)).calls) == ["a#0", "c#0"]


def test_a_workflow_needs_an_output() -> None:
    with pytest.raises(UsageError, match="at least one output"):
        Workflow.of()


@pytest.mark.parametrize("wrong", [3, None, f, [f()]], ids=repr)
def test_anything_but_an_output_is_rejected(wrong: Any) -> None:
    with pytest.raises(UsageError, match="is not an output of a task"):
        Workflow.of(f(), wrong)


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_outputs_is_as_good_as_the_outputs(kind: Any) -> None:
    outputs = [a(), b(), a()]
    assert Workflow.of(kind(outputs)).sinks == Workflow.of(*outputs).sinks == ("a#0", "b#0", "a#1")
    with pytest.raises(UsageError, match="at least one output"):
        Workflow.of(kind())
    with pytest.raises(UsageError, match=r"3 is not an output .* one list of them"):
        Workflow.of(kind([a(), 3]))


def test_related_tasks_are_adjacent() -> None:
    root = a()
    workflow = Workflow.of(f([c(b(root, i)) for i in range(2)]))
    assert list(workflow.calls) == ["a#0", "b#0", "c#0", "b#1", "c#1", "f#0"]


def test_each_task_comes_after_its_upstream_tasks() -> None:
    rng = random.Random(0)
    outputs = [a()]
    for _ in range(300):
        outputs.append(f(rng.choices(outputs, k=3), rng.choice(outputs)))
    rng.shuffle(outputs)
    before: set[str] = set()
    for name, sources in Workflow.of(*outputs).upstream.items():
        assert before.issuperset(sources)
        before.add(name)
    assert len(before) == 301


def test_order_does_not_depend_on_when_tasks_were_created() -> None:
    def built(first: int, second: int) -> Workflow:
        sources: dict[int, Output[Any]] = {}
        for number in (first, second):
            sources[number] = a(number)
        return Workflow.of(f(b(sources[1]), c(sources[2])))

    one, other = built(1, 2), built(2, 1)
    assert one.calls == other.calls
    assert one.upstream == other.upstream
    assert list(one.calls) == list(other.calls) == ["a#0", "b#0", "a#1", "c#0", "f#0"]


def test_downstream_and_after_follow_the_outputs() -> None:
    root = a()
    left, right = b(root), c(root)
    workflow = Workflow.of(f(left, right), a(left))
    assert workflow.downstream("a#0") == ("b#0", "c#0")
    assert workflow.downstream("b#0") == ("f#0", "a#1")
    assert workflow.downstream("f#0") == ()
    assert workflow.after("a#0") == ("b#0", "c#0", "f#0", "a#1")
    assert workflow.after("c#0") == ("f#0",)


@pytest.mark.slow
def test_a_chain_of_100_000_tasks_is_a_workflow_like_any_other() -> None:
    output = a()
    for _ in range(99_999):
        output = f([output])
    workflow = Workflow.of(output)
    assert len(workflow) == 100_000
    assert workflow.upstream["f#99998"] == ("f#99997",)
    assert len(workflow.fingerprint()) == 32


def test_a_graph_with_many_paths_is_traversed_once() -> None:
    output = a()
    for _ in range(200):
        output = f(output, [output], x=output)
    assert len(Workflow.of(output)) == 201


def test_an_output_that_needs_itself_is_an_error() -> None:
    argument: list[Any] = [1]
    output = f(argument)
    argument.append(output)
    with pytest.raises(WorkflowError, match="'f' depends on itself"):
        Workflow.of(output)


def test_a_longer_cycle_is_an_error() -> None:
    argument: list[Any] = []
    first = a(argument)
    argument.append({"k": c(b(first), x=1)})
    with pytest.raises(WorkflowError, match="depends on itself"):
        Workflow.of(f(first))


def held_by_itself() -> list[Any]:
    """Return containers that contain themselves, with and without outputs."""
    alone: list[Any] = [1]
    alone.append(alone)
    with_output: list[Any] = [a()]
    with_output.append(with_output)
    mapping: dict[str, Any] = {}
    mapping["deep"] = ([], ([], mapping))
    return [alone, with_output, mapping, [[alone], 1]]


@pytest.mark.parametrize("argument", held_by_itself(), ids=["alone", "output", "dict", "inside"])
def test_a_container_that_contains_itself_is_rejected(argument: Any) -> None:
    with pytest.raises(WorkflowError, match=r"Argument 2 of 'f' is a (list|dict) that contains"):
        Workflow.of(f(0, argument))
    with pytest.raises(WorkflowError, match="Argument 'named' of 'f' is a"):
        Workflow.of(f(named=argument))


def test_a_container_may_hold_a_value_twice() -> None:
    twice, empty = [1, a()], ()
    call = Workflow.of(f([twice, [twice], empty, {"more": (empty, twice)}])).calls["f#0"]
    assert call.nested == (0,)


def test_a_workflow_cannot_be_changed() -> None:
    workflow = Workflow.of(f())
    with pytest.raises(FrozenInstanceError):
        workflow.sinks = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f(a()), f(b())),
        (f(a(), 1), f(1, a())),
        (f(a(), 1), f(a())),
        (f(a()), f(x=a())),
        (f(x=a(), y=1), f(x=1, y=a())),
        (f(x=a()), f(y=a())),
        (f(a()), f([a()])),
        (f([a()]), f((a(),))),
        (f([a()]), f([[a()]])),
        (f([a(), 1]), f([1, a()])),
        (f({"k": a()}), f({"j": a()})),
        (f({1: a()}), f({"1": a()})),
        (f({"k": a()}), f(["k", a()])),
        (f({("k", 1): a()}), f({("k", 2): a()})),
        (f(named("a b")()), f(named("a' 'b")())),
    ],
)
def test_two_wirings_have_two_fingerprints(one: Output[Any], other: Output[Any]) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_sharing_an_output_differs_from_repeating_its_call() -> None:
    output = a()
    assert fingerprint(f(output, output)) != fingerprint(f(a(), a()))


def test_different_sinks_are_a_different_wiring() -> None:
    inner = a()
    outer = f(inner)
    prints = {fingerprint(*sinks) for sinks in [(outer,), (outer, inner), (inner, outer)]}
    assert len(prints | {fingerprint(outer, outer)}) == 4


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f(1, a()), f("x" * 1000, a())),
        (f(a(), x=None), f(a(), x=[1, 2])),
        (f([1], a()), f([1, [2]], a())),
        (f([a(), 1]), f([a(), [1, 2, {"k": 3}]])),
        (f([a(), [1]]), f([a(), []])),
        (f({"k": a(), "n": 1}), f({"k": a(), "n": {"m": 2}})),
    ],
)
def test_values_of_constants_do_not_matter(one: Output[Any], other: Output[Any]) -> None:
    assert fingerprint(one) == fingerprint(other)


def test_keys_with_the_default_repr_count_by_their_type() -> None:
    class Key:
        pass

    assert fingerprint(f({Key(): a()})) == fingerprint(f({Key(): a()}))
    assert fingerprint(f({(Key(), 1): a()})) == fingerprint(f({(Key(), 1): a()}))
    assert fingerprint(f({Key(): a()})) != fingerprint(f({"Key": a()}))


def test_keys_are_distinguished_by_their_repr() -> None:
    colour = Enum("colour", ["RED", "BLUE"])
    assert fingerprint(f({colour.RED: a()})) != fingerprint(f({colour.BLUE: a()}))


SCRIPT = """
from shoal.workflow import Workflow, task

class Key: ...

@task
def f(*args, **kwargs): ...

keys = [frozenset("abcdef"), (frozenset(["x", "y", 3]), "z"), Key(), Key.__init__, f.function, "k"]
print(Workflow.of(f({key: f() for key in keys}, f(1), x=[f(2), {"a", "b"}])).fingerprint())
"""


def test_fingerprint_is_the_same_in_every_process() -> None:
    def printed(seed: int) -> str:
        return subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert printed(1) == printed(2) == printed(3)


@dataclass(frozen=True)
class Use:
    """An argument that is the output of an earlier call."""

    call: int


@dataclass(frozen=True)
class Held:
    """An argument that is a container; the keys are None unless it is a dict."""

    kind: type
    keys: tuple[Any, ...]
    items: tuple[Any, ...]


@dataclass(frozen=True)
class Drawn:
    """A call: its task's name and its arguments, where named ones have a name."""

    name: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Wiring:
    """A random workflow as plain data; a call uses only earlier ones, None is a constant."""

    calls: tuple[Drawn, ...]
    sinks: tuple[int, ...]


NAMES = st.sampled_from(["a", "b", "a b", "@0", ".", "'a'(@0)", 'a"'])
PLACES = st.sampled_from(["x", "y", "x y", "."])
KEYS = st.sampled_from(["k", 1, "1", None, ".", "@0", ("k", 1), "k:@0 'k'"])


def held(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Held]:
    listed = st.builds(
        lambda kind, items: Held(kind, (None,) * len(items), tuple(items)),
        st.sampled_from([list, tuple]),
        st.lists(items, max_size=3),
    )
    keyed = st.dictionaries(KEYS, items, max_size=2).map(
        lambda drawn: Held(dict, tuple(drawn), tuple(drawn.values()))
    )
    return listed | keyed


@cache
def arguments(earlier: int) -> st.SearchStrategy[Any]:
    leaves: st.SearchStrategy[Any] = st.none()
    if earlier:
        leaves |= st.integers(0, earlier - 1).map(Use)
    return leaves | held(leaves | held(leaves))


@cache
def calls(earlier: int) -> st.SearchStrategy[Drawn]:
    return st.builds(
        Drawn,
        NAMES,
        st.lists(arguments(earlier), max_size=3).map(tuple),
        st.dictionaries(PLACES, arguments(earlier), max_size=2).map(lambda d: tuple(d.items())),
    )


@st.composite
def wirings(draw: st.DrawFn) -> Wiring:
    drawn = tuple(draw(calls(earlier)) for earlier in range(draw(st.integers(1, 4))))
    sinks = draw(st.lists(st.integers(0, len(drawn) - 1), min_size=1, max_size=3))
    return Wiring(drawn, tuple(sinks))


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Wiring, Wiring]:
    """A wiring and one that differs from it in a call or in the sinks, if at all."""
    one = draw(wirings())
    if draw(st.booleans()):
        changed = draw(st.integers(0, len(one.calls) - 1))
        call = draw(calls(changed))
        return one, Wiring((*one.calls[:changed], call, *one.calls[changed + 1 :]), one.sinks)
    last = st.integers(0, len(one.calls) - 1)
    return one, Wiring(one.calls, tuple(draw(st.lists(last, min_size=1, max_size=3))))


def meaning(wiring: Wiring) -> Any:
    """Return a value that is equal for two wirings exactly if they are the same.

    Calls are numbered in the order of a walk up from the sinks. Calls that the walk doesn't reach
    have no number, and a value without outputs is a constant.
    """
    numbers: dict[int, int] = {}
    met: dict[int, Any] = {}

    def of(argument: Any) -> Any:
        match argument:
            case Use(call):
                if call not in numbers:
                    numbers[call] = number = len(numbers)
                    drawn = wiring.calls[call]
                    args = [of(inner) for inner in drawn.args]
                    met[number] = drawn.name, args, [(key, of(v)) for key, v in drawn.kwargs]
                return ("use", numbers[call])
            case Held(kind, keys, items):
                inside = [of(item) for item in items]
                return (kind, keys, inside) if any(inside) else None
        return None

    return [of(Use(sink)) for sink in wiring.sinks], met


def built(wiring: Wiring, order: list[int], constants: Any) -> list[Output[Any]]:
    """Build the wiring as outputs, created in this order as far as dependencies allow."""
    made: dict[int, Output[Any]] = {}

    def value(argument: Any) -> Any:
        match argument:
            case Use(call):
                return output(call)
            case Held(kind, keys, items):
                inside = [value(item) for item in items]
                return dict(zip(keys, inside, strict=True)) if kind is dict else kind(inside)
        return next(constants)

    def output(call: int) -> Output[Any]:
        if call not in made:
            drawn = wiring.calls[call]
            kwargs = {key: value(argument) for key, argument in drawn.kwargs}
            args = [value(argument) for argument in drawn.args]
            made[call] = named(drawn.name)(*args, **kwargs)
        return made[call]

    for call in order:
        output(call)
    return [made[sink] for sink in wiring.sinks]


def plainly(wiring: Wiring) -> str:
    return fingerprint(*built(wiring, list(range(len(wiring.calls))), count()))


LIST = Held(list, (None,), (Use(0),))


@given(neighbours() | st.tuples(wirings(), wirings()))
@example(
    (
        Wiring((Drawn("a", (), ()), Drawn("b", (LIST,), ())), (1,)),
        Wiring((Drawn("a", (), ()), Drawn("b", (Use(0),), ())), (1,)),
    )
)
def test_fingerprints_are_equal_exactly_if_the_wirings_are(pair: tuple[Wiring, Wiring]) -> None:
    one, other = pair
    assert (plainly(one) == plainly(other)) == (meaning(one) == meaning(other))


@given(wirings().flatmap(lambda w: st.tuples(st.just(w), st.permutations(range(len(w.calls))))))
def test_order_of_creation_and_constants_change_nothing(case: tuple[Wiring, list[int]]) -> None:
    wiring, order = case
    constants = iter(lambda: object(), None)
    one = Workflow.of(*built(wiring, list(range(len(order))), count()))
    other = Workflow.of(*built(wiring, order, constants))
    assert one.fingerprint() == other.fingerprint()
    assert list(one.calls) == list(other.calls)
    assert one.upstream == other.upstream
    assert one.sinks == other.sinks
