"""What `ridgeline doctor` says of GPUs, from what the driver's tool said on machines: every loss has its fix."""

from pathlib import Path

import pytest

from ridgeline.cli import doctor
from ridgeline.cli.doctor import check_gpus
from ridgeline.facts.hardware import gpu as facts
from ridgeline.facts.hardware.gpu import Gpu, has_gpu_without_driver, query_driver, read_gpus, torch_cuda

H200 = "NVIDIA H200, {driver}, {persistence}, 1980, 1980, {power}, 700.00, {used}, 143771"
NEW = ", {reasons}, {temperature}, 9.0"
WELL = {
    "driver": "580.159.04", "persistence": "Enabled", "power": "700.00", "used": "4", "reasons": "0x0000000000000000", "temperature": "33",
}  # fmt: skip


def smi(folder: Path, *answers: str, status: int = 0) -> str:
    """A stand-in for the tool: the first answer is to all fields, the second to those that older drivers know."""
    program = folder / "nvidia-smi"
    first, second = answers[0], answers[-1]
    script = f"#!/bin/sh\ncase \"$1\" in *compute_cap*) cat <<'E'\n{first}\nE\n;; *) cat <<'E'\n{second}\nE\n;; esac\nexit {status}\n"
    program.write_text(script)
    program.chmod(0o755)
    return str(program)


def fixes(folder: Path, cuda: int | None = 13, **state: str) -> dict[str, str]:
    """The fix of each loss of one H200 in such a state."""
    gpus, driver_message = query_driver(smi(folder, (H200 + NEW).format(**WELL | state)))
    assert len(gpus) == 1 and not driver_message
    found = check_gpus(gpus, driver_message, cuda)
    return {each.name.removeprefix("GPU 0 "): each.fix for each in found if each.fix is not None}


def test_a_gpu_that_is_well(tmp_path: Path) -> None:
    assert fixes(tmp_path) == {}
    (gpu,) = read_gpus(str(tmp_path / "nvidia-smi"))
    assert gpu == Gpu("NVIDIA H200", "580.159.04", True, 1980.0, 1980.0, 700.0, 700.0, 4.0, 143771.0, (), 33.0, 9.0)
    names = [finding.name for finding in check_gpus([gpu], "", 13)]
    assert names == ["GPU 0", "GPU 0 driver", "GPU 0 persistence", "GPU 0 clocks", "GPU 0 power", "GPU 0 memory"]


@pytest.mark.parametrize(
    ("state", "what", "fix"),
    [
        ({"persistence": "Disabled"}, "persistence", "nvidia-smi -pm 1 (as root)"),
        ({"power": "500.00"}, "power", "nvidia-smi -pl 700 (as root)"),
        ({"used": "20480"}, "memory", "end the processes that hold the rest: `nvidia-smi` lists them"),
        ({"driver": "570.86.15"}, "driver", "install driver 580 or later, or a torch for an older CUDA"),
        ({"reasons": "0x0000000000000002"}, "clocks", "nvidia-smi -rac, nvidia-smi -rgc (as root)"),
        ({"reasons": "0x0000000000000060", "temperature": "91"}, "clocks", "cool the machine: check fans and air flow"),
        ({"reasons": "0x0000000000000080"}, "clocks", "check the machine's power supply: it makes the GPU slow down"),
    ],
)
def test_each_loss_has_its_fix(tmp_path: Path, state: dict[str, str], what: str, fix: str) -> None:
    assert fixes(tmp_path, **state) == {what: fix}


def test_what_is_no_loss(tmp_path: Path) -> None:
    assert fixes(tmp_path, cuda=12, driver="570.86.15") == {}  # new enough for this torch
    assert fixes(tmp_path, cuda=None, driver="470.1") == {}  # no torch: what it would need is not known
    assert fixes(tmp_path, reasons="0x0000000000000001") == {}  # it idles
    assert fixes(tmp_path, reasons="[N/A]", temperature="[N/A]") == {}


def test_low_clocks_are_told_with_their_reason(tmp_path: Path) -> None:
    gpus = read_gpus(smi(tmp_path, (H200 + NEW).format(**WELL | {"reasons": "0x68", "temperature": "91"})))
    (clocks,) = [finding for finding in check_gpus(gpus) if finding.name == "GPU 0 clocks"]
    assert "lowered by the hardware and heat at 91 °C" in clocks.text


def test_a_driver_that_knows_fewer_fields(tmp_path: Path) -> None:
    unknown = 'Field "clocks_event_reasons.active" is not a valid field to query.'
    (gpu,) = read_gpus(smi(tmp_path, unknown, H200.format(**WELL | {"driver": "515.65.01"})))
    assert (gpu.driver, gpu.slow, gpu.capability) == ("515.65.01", (), None)


def test_a_gpu_that_is_too_old(tmp_path: Path) -> None:
    line = (H200 + NEW).format(**WELL).replace("NVIDIA H200", "Tesla V100").replace("9.0", "7.0")
    model = check_gpus(read_gpus(smi(tmp_path, line)))[0]
    assert "too old, 8.0 is the least" in model.text and model.fix == "take another GPU, or --runner native"


@pytest.mark.parametrize(
    ("driver_message", "fix"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "modprobe nvidia"),
        ("Failed to initialize NVML: Driver/library version mismatch", "restart the machine"),
        ("No devices were found", "install the NVIDIA driver's tools"),
        ("", "install the NVIDIA driver's tools"),
    ],
)
def test_a_driver_that_describes_nothing(tmp_path: Path, driver_message: str, fix: str) -> None:
    gpus, told = query_driver(smi(tmp_path, driver_message, status=9))
    (finding,) = check_gpus(gpus, told)
    assert gpus == () and driver_message in finding.text and finding.fix is not None and fix in finding.fix


def test_the_tool_is_absent(tmp_path: Path) -> None:
    gpus, driver_message = query_driver(str(tmp_path / "nvidia-smi"))
    assert gpus == () and driver_message.endswith("nvidia-smi is absent")


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:17:00.0"
    device.mkdir(parents=True)
    (device / "class").write_text("0x030200\n")
    (device / "vendor").write_text("0x8086\n")
    assert not has_gpu_without_driver(tmp_path)
    (device / "vendor").write_text("0x10de\n")
    assert has_gpu_without_driver(tmp_path)
    monkeypatch.setattr(doctor, "has_gpu_without_driver", lambda: True)
    (finding,) = doctor.gpu_findings()
    assert finding.fix is not None and "install NVIDIA's driver, 580 or later" in finding.fix
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert not has_gpu_without_driver(tmp_path)


@pytest.mark.parametrize(("text", "cuda"), [("cuda: Optional[str] = '13.0'", 13), ("cuda = '12.8'", 12), ("cuda: str | None = None", None)])
def test_cuda_of_the_installed_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, cuda: int | None) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "version.py").write_text(f"__version__ = '2.11.0'\n{text}\nhip: Optional[str] = None\n")
    spec = facts.importlib.util.spec_from_file_location("torch", package / "__init__.py")
    monkeypatch.setattr(facts.importlib.util, "find_spec", lambda name: spec)
    assert torch_cuda() == cuda


def test_missing_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no NVIDIA device" in (facts.gpu_missing(tmp_path) or "")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    monkeypatch.setattr(facts, "PACKAGES", ("sys", "no_such_package"))
    assert "no_such_package cannot be imported" in (facts.gpu_missing(tmp_path) or "")
    monkeypatch.setattr(facts, "PACKAGES", ("sys",))
    assert facts.gpu_missing(tmp_path) is None
