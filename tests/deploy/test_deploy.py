"""What stands in deploy/: units and files that the programs they are for accept, with settings and metrics that exist."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ridgeline.cli.main import load_verb
from ridgeline.cli.serve import serve
from ridgeline.core.plan import KVShape
from ridgeline.core.routing import ROUTING
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.prometheus import exposition
from ridgeline.planning.objectives import Objective
from ridgeline.router.metrics import RouterMetrics
from ridgeline.router.replicas import Replicas
from ridgeline.server.routes import PUBLIC

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
MAX_EXPOSURE = 1.5
"""Of 10, by `systemd-analyze security`: what remains is the network, which a server needs."""


def settings() -> set[str]:
    """Names of the flags of `serve`, as files and variables write them."""
    return set(serve.__signature__.parameters)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with a program that exists."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (DEPLOY / "ridgeline.service").read_text()
    found = tmp_path / "ridgeline.service"
    found.write_text(text.replace("/opt/ridgeline/bin/ridgeline", sys.executable))
    return found


def test_systemd_accepts_the_unit(unit: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr


def test_the_unit_is_confined(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={int(MAX_EXPOSURE * 10)}", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    exposure = re.search(r"exposure level for ridgeline.service: ([\d.]+)", done.stdout)
    assert exposure and float(exposure[1]) <= MAX_EXPOSURE


def test_variables_and_flags_exist() -> None:
    texts = {path.name: path.read_text() for path in DEPLOY.iterdir() if path.is_file()}
    # RIDGELINE_RAY_…: of ray_serve.py, whose head names them.
    variables = {name.lower() for text in texts.values() for name in re.findall(r"RIDGELINE_(?!RAY_)([A-Z_]+)", text)}
    names = re.compile(r"(?<!\w)--((?:api|shutdown|host|config)[a-z-]*)")
    flags = {name.replace("-", "_") for text in texts.values() for name in names.findall(text)}
    assert variables and flags and variables | flags <= settings()


def test_the_settings_file_is_one(tmp_path: Path) -> None:
    import tomllib

    assert set(tomllib.loads((DEPLOY / "ridgeline.toml").read_text())) <= settings()


def test_compose_file_and_workflow_are_confined() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    service = compose["services"]["ridgeline"]
    assert (DEPLOY / service["build"]["dockerfile"].removeprefix("deploy/")).is_file()
    assert service["read_only"] and service["cap_drop"] == ["ALL"] and all(port.startswith("127.0.0.1:") for port in service["ports"])
    workflow = yaml.safe_load((DEPLOY.parent / ".github" / "workflows" / "wheels.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}


def test_the_image_runs_without_rights() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    last = text.rpartition("FROM ")[2]
    assert text.count("FROM ") == 2 and "USER 10001" in last and "g++" not in last and "HEALTHCHECK" in last


def exposed_names() -> set[str]:
    """Names of samples: what /metrics has, and what the rules record."""
    kv = KVShape((), 16, 1, b"")
    metrics = Metrics(Objective(1.0, 1.0))
    metrics.tenants.find("t")
    text = exposition(metrics, "m", kv, ["t"], pids={"": os.getpid(), "ridgeline_engine": os.getpid()}).decode()
    typed = {(words[2], words[3]) for words in map(str.split, text.splitlines()) if words[:2] == ["#", "TYPE"]}
    names = {name for name, _ in typed}
    names |= {f"{name}_{part}" for name, kind in typed if kind == "histogram" for part in ("bucket", "sum", "count")}
    return names | {rule["record"] for rule in rules_of("rules.yml")}


def rules_of(name: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load((DEPLOY / name).read_text())["groups"] for rule in group["rules"]]


def test_every_expression_reads_metrics_that_exist() -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    scaler = yaml.safe_load((DEPLOY / "kubernetes" / "keda.yaml").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [rule["expr"] for name in ("rules.yml", "alerts.yml") for rule in rules_of(name)]
    asked += [trigger["metadata"]["query"] for trigger in scaler["spec"]["triggers"]]
    names = {name for text in asked for name in re.findall(r"(?:vllm:|ridgeline[_:]|process_)[\w:]+", text)}
    assert len(names) > 40 and names <= exposed_names()


def test_every_alert_is_explained_and_tried() -> None:
    """A row in the guide that says what to do, and a story in which it fires."""
    guide = (DEPLOY.parent / "docs" / "guide" / "deploy.md").read_text()
    alerts = {rule["alert"]: rule for rule in rules_of("alerts.yml")}
    assert alerts.keys() == set(re.findall(r"^\| `([A-Z]\w+)` \|", guide, re.MULTILINE))
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] in ("page", "ticket") for rule in alerts.values())
    stories = yaml.safe_load((Path(__file__).parent / "alerts_test.yml").read_text())["tests"]
    fired = {each["alertname"] for story in stories for each in story["alert_rule_test"] if each["exp_alerts"]}
    assert fired == alerts.keys()


@pytest.mark.parametrize(
    "command",
    [
        ("promtool", "check", "config", "deploy/prometheus.yml"),
        ("promtool", "test", "rules", "tests/deploy/alerts_test.yml"),
        ("amtool", "check-config", "deploy/alertmanager.yml"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_prometheus_own_tools_accept_the_files(command: tuple[str, ...]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=DEPLOY.parent)
    assert done.returncode == 0, done.stdout + done.stderr


def manifests(name: str) -> list[dict[str, Any]]:
    """The objects of a file, each by the published schemas and without unknown fields."""
    validator = pytest.importorskip("kubernetes_validate")
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))
    for each in found:
        validator.validate(each, "1.31", strict=True)
    return found


def check_pod(pod: dict[str, Any]) -> dict[str, Any]:
    """The one container of a pod: probes ask what needs no key, variables are settings, there are no rights, and an end has its time."""
    (container,) = pod["containers"]
    kinds = [kind for kind in ("startup", "readiness", "liveness") if f"{kind}Probe" in container]
    probes = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in kinds}
    assert {"startup": "/startupz"} | probes == {"startup": "/startupz", "readiness": "/readyz", "liveness": "/livez"}
    assert all(("GET", path) in PUBLIC for path in probes.values()), "a probe has no key"
    variables = {each["name"].removeprefix("RIDGELINE_").lower(): each["value"] for each in container.get("env", ())}
    assert variables.keys() <= settings()
    confined = container["securityContext"]
    assert confined["readOnlyRootFilesystem"] and confined["capabilities"] == {"drop": ["ALL"]} and pod["securityContext"]["runAsNonRoot"]
    flags = dict(each.removeprefix("--").split("=", 1) for each in container["args"] if each.startswith("--"))
    assert pod["terminationGracePeriodSeconds"] > int(variables.get("shutdown_timeout") or flags["shutdown-timeout"]) + 5
    mounted = {volume["name"] for volume in container["volumeMounts"]} - {"state"}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    return container


def test_kubernetes_accepts_the_manifests() -> None:
    (deployment,) = (each for each in manifests("ridgeline.yaml") if each["kind"] == "Deployment")
    check_pod(deployment["spec"]["template"]["spec"])


def test_the_fleet_is_one() -> None:
    """Router and servers name each other, share their secrets, and there are as many names as KEDA may start servers."""
    found = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in manifests("fleet.yaml")}
    replica, router = found["StatefulSet", "ridgeline-replica"], found["Deployment", "ridgeline-router"]
    server, container = (check_pod(each["template"]["spec"]) for each in (replica, router))
    verb, *arguments = container["args"]
    assert verb == "route" and replica["serviceName"] == "ridgeline-replica"
    assert found["Service", "ridgeline-replica"]["clusterIP"] == "None"
    parsed = load_verb("route", "route").make_context("route", arguments).params
    names = [f"http://ridgeline-replica-{number}.ridgeline-replica:8000" for number in range(len(parsed["replica"]))]
    assert list(parsed["replica"]) == names and parsed["hold_timeout"] > 0
    variables = {each["name"]: each["value"] for each in server["env"]}
    assert all(variables[f"RIDGELINE_{name.upper()}"] == parsed[name] for name in ("router_key_file", "api_key_file"))
    assert variables["RIDGELINE_KV_CACHE_DIR"].startswith("/var/lib/ridgeline/"), "on the volume that outlives it"
    assert "replicas" not in replica, "their number is KEDA's"
    scaler = keda("fleet-keda.yaml")
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"], scaler["spec"]["maxReplicaCount"]) == ("StatefulSet", "ridgeline-replica", len(names))
    exposed = RouterMetrics().exposition(Replicas([], ROUTING["random"])).decode()
    asked = re.findall(r"ridgeline_router_\w+", scaler["spec"]["triggers"][0]["metadata"]["query"])
    assert scaler["spec"]["minReplicaCount"] == 0 and len(asked) == 2 and all(f"# TYPE {name} gauge" in exposed for name in asked)


def keda(name: str) -> dict[str, Any]:
    """A scaler; read into the published model and written again it is the same: no field is misspelt."""
    models = pytest.importorskip("cloudcoil.models.keda.v1alpha1")
    scaler: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / name).read_text())
    read = models.ScaledObject.model_validate(scaler)
    assert read.model_dump(by_alias=True, exclude_none=True, mode="json") == scaler
    return scaler


def test_keda_accepts_the_scaler() -> None:
    assert keda("keda.yaml")["spec"]["scaleTargetRef"]["name"] == "ridgeline"
