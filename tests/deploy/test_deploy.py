"""What stands in deploy/: units and files that the programs they are for accept, with settings and metrics that exist."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ridgeline.cli.serve import serve
from ridgeline.core.plan import KVShape
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.prometheus import exposition

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
    variables = {name.lower() for text in texts.values() for name in re.findall(r"RIDGELINE_([A-Z_]+)", text)}
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


def test_dashboard_and_alerts_read_metrics_that_exist() -> None:
    """Names of every expression are those of the exposition; Prometheus accepts its files."""
    text = exposition(Metrics(), "m", KVShape((), 16, 1, b"")).decode()
    exposed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    histograms = {f"{name}_bucket" for name in exposed}
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    alerts = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    names = {name for text in asked for name in re.findall(r"(?:vllm:|ridgeline_)\w+", text)}
    assert len(names) > 12 and names <= exposed | histograms
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(["promtool", "check", "config", DEPLOY / "prometheus.yml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
