"""An argument beats a variable, a variable the file, the file the default; others are rejected."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from shoal.engines.environment import FUNCTION_VARIABLE
from shoal.errors import SettingsError
from shoal.platform.environment import ENVIRONMENT_VARIABLE
from shoal.settings import (
    NAMES,
    Settings,
    connections,
    in_force,
    options,
    origins,
    resolve,
)

Write = Callable[[str], None]


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("SHOAL_")]:
        monkeypatch.delenv(variable)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A function that writes the settings file."""

    def write(text: str) -> None:
        (tmp_path / "shoal.toml").write_text(text, encoding="utf-8")

    return write


def test_defaults_apply_where_nothing_is_set() -> None:
    assert resolve({}) == Settings()


@pytest.mark.parametrize(
    ("argument", "variable", "file", "workers", "origin"),
    [
        ("", "", "", None, "default"),
        ("", "", "1", 1, "shoal.toml"),
        ("", "2", "", 2, "SHOAL_WORKERS"),
        ("", "2", "1", 2, "SHOAL_WORKERS"),
        ("3", "", "", 3, "the call"),
        ("3", "", "1", 3, "the call"),
        ("3", "2", "", 3, "the call"),
        ("3", "2", "1", 3, "the call"),
        ("None", "2", "1", None, "the call"),
    ],
)
def test_argument_beats_a_variable_beats_the_file_beats_the_default(
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    argument: str,
    variable: str,
    file: str,
    workers: int | None,
    origin: str,
) -> None:
    if variable:
        monkeypatch.setenv("SHOAL_WORKERS", variable)
    if file:
        write(f"workers = {file}")
    arguments = {"workers": None if argument == "None" else int(argument)} if argument else {}
    assert resolve(arguments).workers == workers
    assert origins(arguments)["workers"] == origin


def test_every_setting_has_an_origin() -> None:
    assert origins({}) == dict.fromkeys(NAMES, "default")


def test_settings_from_all_sources_are_merged(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_STORE", "redis://variable")
    monkeypatch.setenv("SHOAL_TOKEN", "variable")
    write('token = "file"\nmemory_mb = 512\nsandboxes = 4')
    assert resolve({"sandboxes": 5, "latency": 1}) == Settings(
        store="redis://variable", token="variable", memory_mb=512, sandboxes=5, latency=1
    )


# A token goes to the platform that is set in the same source.

A, B = "http://a:1", "http://b:2"


@pytest.mark.parametrize(
    ("variables", "file", "call", "token"),
    [
        ({"platform": A, "token": "a"}, {}, {}, "a"),
        ({"platform": A, "token": "a"}, {"platform": B}, {}, "a"),
        ({"platform": A, "token": "a"}, {"platform": B, "token": "b"}, {}, "a"),
        ({"platform": A}, {"platform": B, "token": "b"}, {}, None),
        ({"platform": A}, {"platform": A, "token": "b"}, {}, "b"),
        ({"token": "a"}, {"platform": B, "token": "b"}, {}, "b"),
        ({"platform": A, "token": "a"}, {"platform": A}, {}, "a"),
        ({"platform": A, "token": "a"}, {}, {"platform": B}, None),
        ({"platform": A, "token": "a"}, {}, {"platform": A}, "a"),
        ({"platform": A, "token": "a"}, {}, {"platform": B, "token": "b"}, "b"),
        ({"token": "a"}, {"platform": B}, {}, None),
        ({"token": "a"}, {}, {"platform": B}, "a"),
        ({"token": "a"}, {"platform": B}, {"platform": A}, "a"),
        ({}, {"platform": B, "token": "b"}, {"platform": A}, None),
        ({"platform": A}, {"token": "b"}, {}, "b"),
        ({"token": "a"}, {"platform": B}, {"platform": None}, "a"),
    ],
)
def test_a_token_belongs_to_the_platform_set_in_the_same_source(
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    file: dict[str, str],
    call: dict[str, str],
    token: str | None,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"SHOAL_{name.upper()}", value)
    write("\n".join(f'{name} = "{value}"' for name, value in file.items()))
    assert resolve(call).token == token


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o664, 0o666])
def test_a_file_that_others_can_write_is_rejected(write: Write, tmp_path: Path, mode: int) -> None:
    write("workers = 2")
    (tmp_path / "shoal.toml").chmod(mode)
    if mode & 0o020 and not mode & 0o002 and os.getuid() != 0:
        pytest.skip("the group may be the user's own")
    with pytest.raises(SettingsError, match=r"others can write to it.*`chmod go-w \S+shoal.toml`"):
        resolve({})


def test_a_file_in_a_folder_that_others_can_write_is_rejected(write: Write, tmp_path: Path) -> None:
    write("workers = 2")
    tmp_path.chmod(0o777)
    with pytest.raises(SettingsError, match=r"others can write to its folder.*`chmod go-w "):
        resolve({})
    tmp_path.chmod(0o1777)  # sticky: nobody can replace others' files
    assert resolve({}).workers == 2


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_rejected(write: Write, tmp_path: Path) -> None:
    write("workers = 2")
    os.chown(tmp_path / "shoal.toml", 65534, 65534)
    with pytest.raises(SettingsError, match=r"belongs to another user \(number 65534\).*`cp "):
        resolve({})


VALUES: dict[str, Any] = {
    "store": "redis://host",
    "durable": True,
    "store_memory_mb": 512,
    "reconnect_seconds": 2.5,
    "platform": "http://host",
    "token": "größe",
    "ca_file": "/etc/ca.pem",
    "isolation": False,
    "pass_variables": "DATABASE_URL,EDITOR",
    "exclude_files": "*.csv,data",
    "workers": 3,
    "memory_mb": 64,
    "cpus": 0.5,
    "sandboxes": 1,
    "idle_seconds": 0.25,
    "history_runs": 7,
    "planner": "uniform",
    "planning_seconds": 0.5,
    "prices": "none",
    "lease": 2.5,
    "restarts": 5,
    "function_seconds": 900.5,
    "straggling": 2.5,
    "keep_seconds": 60.5,
    "keep_mb": 16,
    "check_inputs": True,
    "latency": 0.03,
    "progress": True,
    "history": False,
    "history_url": "redis://elsewhere",
    "cache_mb": 5,
    "folder": "~/shoal",
}


def test_every_setting_is_tested_here() -> None:
    assert set(VALUES) == set(NAMES) == {field.name for field in fields(Settings)}


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_can_be_an_argument(name: str) -> None:
    assert getattr(resolve({name: VALUES[name]}), name) == VALUES[name]


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_can_be_in_the_file(write: Write, name: str) -> None:
    value = VALUES[name]
    text = f'"{value}"' if isinstance(value, str) else str(value).lower()
    write(f"# a comment\n{name} = {text}\n")
    assert getattr(resolve({}), name) == value


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_can_be_a_variable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"SHOAL_{name.upper()}", str(VALUES[name]))
    found = getattr(resolve({}), name)
    assert found == VALUES[name]
    assert type(found) is type(VALUES[name])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, True) for text in ("true", "True", "TRUE", "1", "yes", "Yes")),
        *((text, False) for text in ("false", "False", "0", "no", "NO")),
    ],
)
@pytest.mark.parametrize("name", ["progress", "history"])
def test_boolean_variables_have_several_spellings(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: bool
) -> None:
    monkeypatch.setenv(f"SHOAL_{name.upper()}", text)
    assert getattr(resolve({}), name) is value


@pytest.mark.parametrize("text", ["maybe", "2", "on", ""])
def test_other_text_is_no_boolean(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SHOAL_HISTORY", text)
    with pytest.raises(SettingsError, match=r"the environment sets history .* true or false"):
        resolve({})


@pytest.mark.parametrize(
    ("given", "meant"),
    [("wokers", "workers"), ("memory", "memory_mb"), ("sandbox", "sandboxes"), ("Store", "store")],
)
def test_an_unknown_setting_is_rejected_with_the_closest_one(
    write: Write, monkeypatch: pytest.MonkeyPatch, given: str, meant: str
) -> None:
    with pytest.raises(SettingsError, match=f"the call .*{given}.*did you mean '{meant}'"):
        resolve({given: 1})
    write(f"{given} = 1")
    with pytest.raises(SettingsError, match=rf"shoal\.toml .*{given}.*did you mean '{meant}'"):
        resolve({})
    write("")
    if given.islower():
        monkeypatch.setenv(f"SHOAL_{given.upper()}", "1")
        with pytest.raises(SettingsError, match=f"environment .*{given}.*did you mean '{meant}'"):
            resolve({})


@pytest.mark.parametrize(
    ("given", "meant"), [("dedline", "deadline"), ("resumed", "resume"), ("time_out", "timeout")]
)
def test_an_unknown_option_of_a_call_is_rejected_with_the_closest_one(
    write: Write, given: str, meant: str
) -> None:
    with pytest.raises(SettingsError, match=f"unknown option '{given}'; did you mean '{meant}'"):
        resolve({given: 1})
    with (
        pytest.raises(SettingsError, match=rf"shoal\.options .*did you mean '{meant}'"),
        options(**{given: 1}),
    ):
        pass
    write(f"{given} = 1")
    with pytest.raises(SettingsError, match=rf"shoal\.toml has an unknown setting '{given}'"):
        resolve({})


@pytest.mark.parametrize("name", ["timeout", "resume", "deadline", "sla"])
def test_an_option_of_a_single_run_is_no_setting(write: Write, name: str) -> None:
    write(f"{name} = 1")
    said = rf"shoal\.toml has '{name}', which isn't a setting: pass it to compute\(\)"
    with pytest.raises(SettingsError, match=said):
        resolve({})
    with options(**{name: 1}):
        assert in_force({}) == {name: 1}


def test_a_setting_unlike_any_other_is_rejected_with_the_full_list() -> None:
    with pytest.raises(SettingsError, match=", ".join(NAMES)):
        resolve({"qqq": 1})


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("workers", "4", "a whole number or left out"),
        ("workers", 4.0, "a whole number or left out"),
        ("workers", True, "a whole number or left out"),
        ("memory_mb", None, "a whole number"),
        ("memory_mb", 512.5, "a whole number"),
        ("memory_mb", True, "a whole number"),
        ("cpus", "1", "a number or left out"),
        ("cpus", True, "a number or left out"),
        ("latency", None, "a number"),
        ("latency", False, "a number"),
        ("history", 1, "true or false"),
        ("history", None, "true or false"),
        ("history", "no", "true or false"),
        ("progress", 0, "true or false or left out"),
        ("folder", Path("x"), "a string or left out"),
    ],
)
def test_an_ill_typed_argument_is_rejected_with_the_expected_type(
    name: str, value: Any, wanted: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve({name: value})
    assert str(caught.value) == f"the call sets {name} to {value!r}; it must be {wanted}."


@pytest.mark.parametrize(
    ("text", "name"),
    [("workers = 'four'", "workers"), ("latency = true", "latency"), ("store = [1]", "store"),
     ("history = 1", "history"), ("[store]\nurl = 'x'", "store"),
     ("cpus = 1979-05-27", "cpus")],
)  # fmt: skip
def test_an_ill_typed_setting_in_the_file_is_rejected(write: Write, text: str, name: str) -> None:
    write(text)
    with pytest.raises(SettingsError, match=rf"shoal\.toml sets {name} to .*it must be"):
        resolve({})


@pytest.mark.parametrize(
    ("name", "text"),
    [("WORKERS", "four"), ("WORKERS", "4.5"), ("WORKERS", ""), ("MEMORY_MB", "2GB"),
     ("LATENCY", "30ms"), ("CPUS", "")],
)  # fmt: skip
def test_an_ill_typed_variable_is_rejected(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(f"SHOAL_{name}", text)
    with pytest.raises(SettingsError, match=f"the environment sets {name.lower()} to '{text}'"):
        resolve({})


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("workers", 0, 1),
        ("workers", -1, 1),
        ("sandboxes", 0, 1),
        ("memory_mb", 63, 64),
        ("cpus", -0.5, 0),
        ("idle_seconds", -1, 0),
        ("latency", -0.001, 0),
        ("latency", float("nan"), 0),
    ],
)
def test_a_number_below_the_minimum_is_rejected(name: str, value: float, least: int) -> None:
    with pytest.raises(SettingsError, match=f"sets {name} to .*at least {least}"):
        resolve({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("workers", 1), ("sandboxes", 1), ("memory_mb", 64), ("latency", 0), ("idle_seconds", 0)],
)
def test_the_minimum_itself_is_accepted(name: str, value: int) -> None:
    assert getattr(resolve({name: value}), name) == value


def test_an_integer_is_accepted_for_a_float() -> None:
    assert resolve({"cpus": 2, "latency": 1}) == Settings(cpus=2, latency=1)


@pytest.mark.parametrize("text", ["workers =", "= 3", "workers = 1\nworkers = 2", "\x00"])
def test_a_file_that_is_no_toml_is_rejected_by_name(
    write: Write, tmp_path: Path, text: str
) -> None:
    write(text)
    with pytest.raises(SettingsError) as caught:
        resolve({})
    assert str(tmp_path / "shoal.toml") in str(caught.value)


def test_a_file_that_is_no_text_is_rejected_by_name(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_bytes(b"token = '\xff\xfe'")
    with pytest.raises(SettingsError, match=r"shoal\.toml can't be read"):
        resolve({})


@pytest.mark.parametrize("name", ["store", "token"])
def test_an_error_does_not_repeat_a_secret(write: Write, name: str) -> None:
    for secret in (b"hunter2", 12345):
        with pytest.raises(SettingsError, match="must be a string") as caught:
            resolve({name: secret})
        assert str(secret) not in str(caught.value)
    write(f"{name} = ['hunter2']")
    with pytest.raises(SettingsError, match=f"sets {name} to a value of type list; it must"):
        resolve({})


def test_a_file_in_another_folder_is_ignored(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("workers = 2")
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert resolve({}).workers is None


def test_unrelated_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOALS_OF_FISH", "many")
    monkeypatch.setenv("WORKERS", "7")
    assert resolve({}) == Settings()


def test_the_data_folder_follows_the_setting_or_the_users_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert Settings(folder="~/mine").data_folder() == tmp_path / "home" / "mine"
    assert Settings().data_folder() == tmp_path / "data" / "shoal"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert Settings().data_folder() == tmp_path / "home" / ".local" / "share" / "shoal"


def test_only_connection_settings_need_separate_sessions() -> None:
    same = Settings(workers=3, memory_mb=512, cpus=1.0, progress=True, history=False)
    assert connections(same) == connections(Settings())
    for name in ("store", "platform", "token", "ca_file", "pass_variables", "folder"):
        assert connections(resolve({name: "x"})) != connections(Settings())
    for name in ("sandboxes", "idle_seconds", "latency"):
        assert connections(resolve({name: 1})) != connections(Settings())
    assert connections(resolve({"isolation": False})) != connections(Settings())


@pytest.mark.parametrize("name", ["workers", "sandboxes"])
def test_a_number_above_the_maximum_is_rejected(name: str) -> None:
    assert getattr(resolve({name: 1024}), name) == 1024
    with pytest.raises(SettingsError, match=f"sets {name} to 1025.*at most 1024"):
        resolve({name: 1025})


def test_options_apply_inside_their_block() -> None:
    with options(memory_mb=512, workers=2):
        with options(workers=3, planner="uniform"):
            assert in_force({"memory_mb": 256}) == {
                "memory_mb": 256,
                "workers": 3,
                "planner": "uniform",
            }
        assert in_force({}) == {"memory_mb": 512, "workers": 2}
    assert in_force({}) == {}


def test_an_unknown_option_is_rejected_at_once() -> None:
    with pytest.raises(SettingsError, match="did you mean 'memory_mb'"), options(memory=512):
        pass


def test_what_an_image_tells_of_itself_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client or a gateway may run in an image that `shoal deploy` made."""
    before = resolve({})
    for name in (ENVIRONMENT_VARIABLE, FUNCTION_VARIABLE):
        monkeypatch.setenv(name, "0f3c")
    assert resolve({}) == before


def test_the_file_may_have_a_shoal_table(write: Write) -> None:
    write("memory_mb = 512\n[shoal]\nworkers = 3\nstore = 'redis://there'")
    settings = resolve({})
    assert (settings.memory_mb, settings.workers, settings.store) == (512, 3, "redis://there")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "workers = 2\n[shoal]\nworkers = 3",
            r"sets workers twice: .* and in \[shoal\]",
        ),
        ("[shoal]\nwokers = 3", "unknown setting 'wokers'; did you mean 'workers'"),
        ("[shoal]\nworkers = '3'", "sets workers to '3'"),
        ("[tool.shoal]\nworkers = 3", r"a table \[tool\]: put settings .* or in \[shoal\]"),
        ("[Shoal]\nworkers = 3", r"a table \[Shoal\]: put settings .* or in \[shoal\]"),
        ("[shoal.run]\nworkers = 3", "unknown setting 'run'"),
        ("shoal = 3", "sets shoal to 3; it must be a table"),
    ],
)
def test_an_unknown_table_is_explained(write: Write, text: str, message: str) -> None:
    write(text)
    with pytest.raises(SettingsError, match=rf"shoal\.toml .*{message}"):
        resolve({})
