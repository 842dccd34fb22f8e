"""`shoal deploy http` writes what platforms need, without secrets."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.engines import deploy_http
from shoal.engines.environment import expected
from shoal.engines.http_function import facts_of
from shoal.errors import SettingsError, UsageError
from shoal.platform.events import Deployment

STORE = "redis://:open-sesame@store:6379"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    return folder


Deploy = Callable[..., str]


@pytest.fixture
def deploy(tmp_path: Path, data: Path) -> Deploy:
    def deploy(*options: str) -> str:
        parser = argparse.ArgumentParser()
        deploy_http.configure(parser)
        said: list[str] = []
        args = parser.parse_args([str(tmp_path / "out"), *options])
        deploy_http.deploy(args, data, STORE, said.append)
        return "\n".join(said)

    return deploy


def test_every_platform_gets_its_files(tmp_path: Path, deploy: Deploy) -> None:
    said = deploy("--slots", "2", "--memory-mb", "1024", "--image", "registry/shoal")
    out = tmp_path / "out"
    service = yaml.safe_load((out / "service.yaml").read_text())
    template = service["spec"]["template"]["spec"]
    assert (template["containerConcurrency"], template["timeoutSeconds"]) == (2, 900)
    (container,) = template["containers"]
    assert container["image"] == "registry/shoal"
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "2304Mi"}
    secrets = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in container["env"]
               if "valueFrom" in each}  # fmt: skip
    assert secrets.keys() == {"SHOAL_STORE", "SHOAL_DEPLOYMENT_KEY"}
    stack = yaml.safe_load((out / "stack.yml").read_text())["functions"]["shoal"]
    assert stack["secrets"] == ["shoal-store", "shoal-deployment-key"]
    func = yaml.safe_load((out / "func.yaml").read_text())
    assert (func["runtime"], func["memory"], func["timeout"]) == ("docker", 2304, 300)
    docker = (out / "Dockerfile").read_text()
    assert f"FROM python:{sys.version_info.major}.{sys.version_info.minor}-slim" in docker
    assert 'CMD ["python", "-m", "shoal.engines.serve"]' in docker
    for command in ("gcloud run", "kubectl apply", "faas-cli up", "fn deploy"):
        assert command in said


def test_no_file_and_no_output_has_a_secret(tmp_path: Path, data: Path, deploy: Deploy) -> None:
    said = deploy()
    key = Deployment.of_user(data, STORE).key.hex()
    written = [f.read_bytes() for f in (tmp_path / "out").rglob("*") if f.is_file()]
    assert written
    for secret in (key, "open-sesame"):
        assert secret not in said
        assert not any(secret.encode() in text for text in written)
    assert deploy("--show-key") == key
    assert deploy("--show-store") == STORE
    assert "--show-store | gcloud secrets create shoal-store" in said


def test_a_function_that_knows_its_url_can_call_itself(tmp_path: Path, deploy: Deploy) -> None:
    said = deploy("--url", "https://shoal.example/", "--instances", "7")
    service = yaml.safe_load((tmp_path / "out" / "service.yaml").read_text())
    env: list[dict[str, Any]] = service["spec"]["template"]["spec"]["containers"][0]["env"]
    (platform,) = [each["value"] for each in env if each["name"] == "SHOAL_PLATFORM"]
    query = dict(pair.split("=") for pair in platform.partition("?")[2].split("&"))
    assert facts_of(query).nests
    assert facts_of(query).capacity == 7
    assert platform in said


def test_packages_come_from_a_file_or_from_here(tmp_path: Path, deploy: Deploy) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("# pinned\n-e .\nnumpy==2.0.0 \\\n    --hash=sha256:00\nshoal==0.1.0\n")
    deploy("--requirements", str(lock))
    found = (tmp_path / "out" / "requirements.txt").read_text()
    assert "numpy==2.0.0 \\\n    --hash=sha256:00\n" in found
    assert "-e ." not in found
    deploy()
    assert "cloudpickle==" in (tmp_path / "out" / "requirements.txt").read_text()
    with pytest.raises(SettingsError, match="Can't read"):
        deploy("--requirements", str(tmp_path / "none"))


def test_the_environment_is_named_by_its_packages(tmp_path: Path, deploy: Deploy) -> None:
    lock = tmp_path / "lock.txt"
    names = []
    for text in ("numpy==1\n", "numpy==2\n", "numpy==2\n"):
        lock.write_text(text)
        deploy("--requirements", str(lock))
        docker = (tmp_path / "out" / "Dockerfile").read_text()
        names.append(docker.partition("SHOAL_ENVIRONMENT=")[2].split()[0])
    assert names[0] != names[1] == names[2]


def test_a_deployment_is_noted_with_the_command_that_repeats_it(
    tmp_path: Path, data: Path, deploy: Deploy
) -> None:
    (tmp_path / "lock.txt").write_text("numpy==1\n")
    deploy("--name", "mine", "--slots", "3", "--requirements", str(tmp_path / "lock.txt"))
    docker = (tmp_path / "out" / "Dockerfile").read_text()
    known = expected(data, "http", "mine", "")
    assert f"ENV SHOAL_FUNCTION=mine SHOAL_ENVIRONMENT={known.name}\n" in docker
    assert known.renewal == (
        f"shoal deploy http {tmp_path}/out --name mine --slots 3 --requirements {tmp_path}/lock.txt"
    )


@pytest.mark.real
def test_the_folder_brings_shoal_and_its_engines(tmp_path: Path, deploy: Deploy) -> None:
    deploy()
    out = tmp_path / "out"
    if not (out / "shoal").exists():
        pytest.skip("Shoal wasn't installed from a folder")
    code = (
        "import main, shoal; from importlib.metadata import entry_points;"
        "print(shoal.__file__, *entry_points(group='shoal.platforms').names)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(out)}, cwd=out,
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.startswith(str(out))
    assert "function+https" in said


@pytest.mark.parametrize(
    "options",
    [("--name", "No Name"), ("--slots", "0"), ("--url", "ftp://x"), ("--url", "https://x/?a=b")],
)
def test_what_makes_no_sense_is_refused(deploy: Deploy, options: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=options[0]):
        deploy(*options)


def test_files_of_others_are_left_alone(tmp_path: Path, deploy: Deploy) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "main.py").write_text("print('mine')\n")
    with pytest.raises(UsageError, match="wasn't written by this command"):
        deploy()
    assert (tmp_path / "out" / "main.py").read_text() == "print('mine')\n"
