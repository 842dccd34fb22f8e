"""`shoal deploy lambda` on an emulator of AWS's management API, and what it packs and writes."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lambda_emulator import emulator
from lambda_here import emulated_lambda

from shoal import Session, Task
from shoal.cli.main import main
from shoal.engines import deploy_lambda, function_package, lambda_image
from shoal.engines.deploy_lambda import stack_of
from shoal.engines.environment import expected
from shoal.engines.function_package import Contents, build, contents
from shoal.engines.lambda_stack import Stack, role_policy, template
from shoal.engines.requirements import Requirements
from shoal.errors import PlatformError
from shoal.platform.environment import ENVIRONMENT_VARIABLE
from shoal.platform.events import KEY_VARIABLE, STORE_VARIABLE
from store_servers import tcp_server, url_of

pytestmark = pytest.mark.real

STORE = "redis://store.example:6379"
REGION = "eu-west-1"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("SHOAL_FOLDER", str(tmp_path / "data"))
    monkeypatch.setenv("SHOAL_STORE", STORE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text("cloudpickle\n")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("moto", reason="moto isn't installed: pip install 'moto[server]' boto3")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def aws(endpoint: str) -> Any:
    import boto3

    with urllib.request.urlopen(f"{endpoint}/moto-api/reset", data=b"") as answer:
        answer.read()
    return lambda service: boto3.client(service, endpoint_url=endpoint, region_name=REGION)


def deploy(endpoint: str, *options: str, command: str = "deploy") -> int:
    given = ["--region", REGION, "--endpoint", endpoint, *options]
    if command == "deploy":
        given += ["--requirements", "requirements.txt", "--no-check"]
    return main([command, "lambda", *given])


def test_functions_are_created_with_a_role_that_permits_little(
    aws: Any, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy(endpoint, "--memory", "512,1024", "--concurrency", "20") == 0
    functions = aws("lambda")
    for memory_mb in (512, 1024):
        name = f"shoal-{memory_mb}"
        found = functions.get_function(FunctionName=name)
        assert found["Configuration"]["MemorySize"] == memory_mb
        assert found["Configuration"]["Timeout"] == 900
        variables = found["Configuration"]["Environment"]["Variables"]
        assert variables[STORE_VARIABLE] == STORE
        assert variables["SHOAL_PLATFORM"] == "lambda://shoal?memory=512,1024&concurrency=20"
        events = functions.get_function_event_invoke_config(FunctionName=name)
        assert (events["MaximumRetryAttempts"], events["MaximumEventAgeInSeconds"]) == (0, 300)
        told = events["DestinationConfig"]["OnFailure"]["Destination"]
        assert told.endswith(":function:shoal-512")
        reserved = functions.get_function_concurrency(FunctionName=name)
        assert reserved["ReservedConcurrentExecutions"] == 10
    policy = aws("iam").get_role_policy(RoleName=f"shoal-worker-{REGION}", PolicyName="worker")
    allowed = {str(each["Action"]) for each in policy["PolicyDocument"]["Statement"]}
    assert allowed == {"lambda:InvokeFunction", "['logs:CreateLogStream', 'logs:PutLogEvents']"}
    assert "?memory=512,1024&concurrency=20&region=eu-west-1" in capsys.readouterr().out


def test_a_repetition_changes_nothing_and_a_change_only_what_differs(
    aws: Any, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy(endpoint, "--memory", "512") == 0
    capsys.readouterr()
    assert deploy(endpoint, "--memory", "512") == 0
    again = capsys.readouterr().out
    assert "built before" in again
    assert "function shoal-512: unchanged" in again
    assert deploy(endpoint, "--memory", "512,1024", "--store", "redis://other") == 0
    changed = capsys.readouterr().out
    assert "function shoal-512: configuration updated" in changed
    assert "function shoal-1024: created" in changed
    Path("requirements.txt").write_text("cloudpickle\nsix\n")
    assert deploy(endpoint, "--memory", "512", "--store", "redis://other") == 0
    assert "function shoal-512: code and configuration updated" in capsys.readouterr().out


def test_undeploying_leaves_nothing_of_it_and_everything_else(
    aws: Any, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("shoal", "other"):
        assert deploy(endpoint, "--name", name, "--memory", "512,1024") == 0
    assert deploy(endpoint, "--dry-run", command="undeploy") == 0
    assert len(aws("lambda").list_functions()["Functions"]) == 4
    assert deploy(endpoint, command="undeploy") == 0
    left = [found["FunctionName"] for found in aws("lambda").list_functions()["Functions"]]
    assert sorted(left) == ["other-1024", "other-512"]
    roles = [role["RoleName"] for role in aws("iam").list_roles()["Roles"]]
    assert roles == [f"other-worker-{REGION}"]
    groups = aws("logs").describe_log_groups()["logGroups"]
    assert {group["logGroupName"] for group in groups} == {
        "/aws/lambda/other-512", "/aws/lambda/other-1024"}  # fmt: skip
    capsys.readouterr()
    assert deploy(endpoint, command="undeploy") == 0
    assert "there is no deployment 'shoal'" in capsys.readouterr().out


def test_functions_get_the_certificates_of_the_store(
    aws: Any, endpoint: str, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_text("CERTIFICATE")
    store = f"rediss://store.example?ca_file={tmp_path}/ca.pem"
    assert deploy(endpoint, "--memory", "512", "--store", store) == 0
    found = aws("lambda").get_function(FunctionName="shoal-512")["Configuration"]
    assert found["Environment"]["Variables"][STORE_VARIABLE] == (
        "rediss://store.example?ca_data=CERTIFICATE"
    )


@pytest.mark.parametrize("secret", ["shoal-secret", "ssm:/shoal/secret"])
def test_a_secret_keeps_store_and_key_out_of_the_functions(
    aws: Any, endpoint: str, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert deploy(endpoint, "--memory", "512", "--secret", secret) == 0
    found = aws("lambda").get_function(FunctionName="shoal-512")["Configuration"]
    assert "SHOAL_SECRET" in found["Environment"]["Variables"]
    assert STORE not in json.dumps(found["Environment"])
    from shoal.engines.aws_lambda import secret_variables

    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_REGION", REGION)
    variables = secret_variables(secret)
    assert variables[STORE_VARIABLE] == STORE
    assert len(variables[KEY_VARIABLE]) == 64


def test_a_function_of_somebody_else_is_left_alone(
    aws: Any, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy(endpoint, "--memory", "512") == 0
    functions = aws("lambda")
    arn = functions.get_function(FunctionName="shoal-512")["Configuration"]["FunctionArn"]
    functions.untag_resource(Resource=arn, TagKeys=["shoal"])
    assert deploy(endpoint, "--memory", "512") == 2
    assert "another function 'shoal-512'" in capsys.readouterr().err


def test_a_dry_run_needs_no_aws(capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy("http://127.0.0.1:9", "--memory", "512,1024", "--dry-run") == 0
    text = capsys.readouterr().out
    assert "would create or update the function shoal-1024: 1024 MB" in text
    assert STORE not in text


def test_aws_that_does_not_answer_is_an_error_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("boto3", reason="boto3 isn't installed: pip install 'shoal[lambda]'")
    assert deploy("http://127.0.0.1:9", "--memory", "512") == 1
    assert "AWS doesn't answer" in capsys.readouterr().err


def test_a_missing_store_or_a_wrong_option_is_an_error_in_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert deploy("http://127.0.0.1:9", "--name", "a b", "--dry-run") == 2
    assert "letters, digits and hyphens" in capsys.readouterr().err
    monkeypatch.delenv("SHOAL_STORE")
    assert deploy("http://127.0.0.1:9", "--dry-run") == 2
    assert "Workers on Lambda meet in a store" in capsys.readouterr().err


@pytest.mark.parametrize("options", [(), ("--secret", "mine"), ("--image", "1.dkr.ecr/x:1")])
def test_the_template_passes_cfn_lint(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cfnlint", reason="cfn-lint isn't installed: pip install cfn-lint")
    given = ["--memory", "512,2048", "--concurrency", "10", "--template", "stack.json"]
    given += ["--subnets", "subnet-0a1b2c3d", "--security-groups", "sg-0a1b2c3d", *options]
    assert deploy("http://127.0.0.1:9", *given) == 0
    assert "aws cloudformation deploy" in capsys.readouterr().out
    text = (tmp_path / "stack.json").read_text()
    assert STORE not in text
    command = [
        str(Path(sys.executable).with_name("cfn-lint")),
        "--regions",
        REGION,
        "--",
        "stack.json",
    ]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_template_and_api_configure_functions_alike() -> None:
    stack = Stack("s", (512,), "3.11", "arm64", "hash", {STORE_VARIABLE: STORE, KEY_VARIABLE: "k"})
    properties = template(stack, "key")["Resources"]["Function512"]["Properties"]
    for name, value in stack.configuration(512).items():
        assert name == "Environment" or properties[name] == value
    assert STORE not in json.dumps(template(stack, "key"))


def test_a_role_permits_only_the_deployments_own_functions() -> None:
    stack = Stack("s", (512,), "3.11", "x86_64", "hash", {}, secret="ssm:/a/b")
    policy = role_policy(stack, "arn:aws:{service}:r:1:{resource}")
    resources = [statement["Resource"] for statement in policy["Statement"]]
    assert resources == [
        "arn:aws:lambda:r:1:function:s-*",
        "arn:aws:logs:r:1:log-group:/aws/lambda/s-*:*",
        "arn:aws:ssm:r:1:parameter/a/b",
    ]


# The package.


def packed(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as found:
        return set(found.namelist())


def test_a_package_has_shoal_and_wheels_for_the_functions_system(tmp_path: Path) -> None:
    said: list[str] = []
    wanted = contents(Path("requirements.txt"), [], "arm64", "3.12")
    path = build(wanted, tmp_path / "packages", said.append)
    names = packed(path)
    assert {"shoal/__init__.py", "shoal/storage/lua/run/guard.lua"} <= names
    assert any(name.startswith("msgspec/") and "aarch64" in name for name in names)
    assert not any("__pycache__" in name for name in names)
    before = path.read_bytes()
    path.unlink()
    assert build(wanted, tmp_path / "packages", said.append).read_bytes() == before


def test_a_package_is_named_after_its_contents() -> None:
    one, two = (Requirements((), (f"a=={version}",)) for version in (1, 2))
    name = Contents(one, "3.11", "x86_64").name
    assert name == Contents(one, "3.11", "x86_64").name
    others = {Contents(two, "3.11", "x86_64").name, Contents(one, "3.12", "x86_64").name,
              Contents(one, "3.11", "arm64").name}  # fmt: skip
    assert name not in others


def test_lock_files_are_understood(tmp_path: Path) -> None:
    lock = tmp_path / "pylock.toml"
    lock.write_text('lock-version = "1.0"\n[[packages]]\nname = "six"\nversion = "1.16.0"\n')
    assert contents(lock, [], "x86_64").packages.lines[0] == "six==1.16.0"


def test_what_was_deployed_is_noted_with_the_command_that_renews_it(
    aws: Any, endpoint: str, tmp_path: Path
) -> None:
    assert deploy(endpoint, "--memory", "512", "--store", "redis://:open-sesame@store") == 0
    found = aws("lambda").get_function(FunctionName="shoal-512")["Configuration"]
    deployed = found["Environment"]["Variables"][ENVIRONMENT_VARIABLE]
    known = expected(tmp_path / "data", "lambda", "shoal", "")
    assert known.name == deployed
    assert known.renewal == (
        f"shoal deploy lambda --region {REGION} --endpoint {endpoint} --memory 512 --requirements "
        f'{tmp_path}/requirements.txt --store "$SHOAL_STORE"'
    )
    Path("requirements.txt").write_text("cloudpickle\nsix\n")
    assert expected(tmp_path / "data", "lambda", "shoal", "").name != deployed
    assert deploy(endpoint, "--dry-run", command="undeploy") == 0
    assert expected(tmp_path / "data", "lambda", "shoal", "").name
    assert deploy(endpoint, command="undeploy") == 0
    assert expected(tmp_path / "data", "lambda", "shoal", "").name == ""


def test_functions_of_an_image_have_the_name_of_its_environment() -> None:
    stack = Stack("s", (512,), "3.11", "arm64", "name", {}, image="image:1")
    assert ENVIRONMENT_VARIABLE not in stack.environment_variables()


def test_without_docker_a_package_that_is_too_large_leads_to_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lambda_image, "builder", lambda: None)
    monkeypatch.setattr(function_package, "UNZIPPED_NBYTES", 1000)
    args = argparse.Namespace(
        requirements=Path("requirements.txt"), package=[], architecture="x86_64", template=None,
        dry_run=False, name="shoal", image="", store=None, subnets="", security_groups="",
        memory="512", secret="", concurrency=None, pass_variables="",
    )  # fmt: skip
    with pytest.raises(PlatformError, match=r"(?s)takes 250.*docker build.*--image"):
        deploy_lambda.deploy(args, tmp_path, STORE, lambda _: None)
    dockerfile = (tmp_path / "shoal-lambda-image" / "Dockerfile").read_text()
    assert "FROM public.ecr.aws/lambda/python:" in dockerfile
    assert f"ENV {ENVIRONMENT_VARIABLE}=" in dockerfile
    assert stack_of(args, contents(None, [], "x86_64"), tmp_path, STORE).memory == (512,)


@pytest.mark.skipif(emulator() is None, reason="Lambda's emulator isn't installed")
def test_a_workflow_runs_on_nothing_but_the_package(tmp_path: Path) -> None:
    wanted = contents(Path("requirements.txt"), [], "x86_64")
    path = build(wanted, tmp_path / "packages", lambda _: None)
    code, runtime = tmp_path / "code", tmp_path / "runtime"
    with zipfile.ZipFile(path) as found:
        found.extractall(code)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "--target", str(runtime), "awslambdaric"], check=True)
    folder = tmp_path / "data"
    with (
        tcp_server() as port,
        emulated_lambda(folder, url_of(port), code=f"{code}:{runtime}") as (url, made),
    ):
        options = {"platform": url, "store": url_of(port), "folder": str(folder)}
        with Session(**options, workers=2, lease=30) as session:
            squares = [Task(lambda number: number * number)(n) for n in range(4)]
            assert session.compute(*squares) == [0, 1, 4, 9]
        assert not made.errors
