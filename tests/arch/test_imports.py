"""The wings hold: import rules, purity, and the one place of each outside thing."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "ridgeline"

ONE_PLACE = {
    "torch": ("compute/cuda/", "compute/distributed/"),
    "triton": ("compute/cuda/",),
    "transformers": ("compute/cuda/bench/peer.py",),
    "ray": ("compute/distributed/ray.py",),
    "prometheus_client": ("observe/prometheus.py", "observe/prometheus_live.py", "observe/prometheus_models.py", "router/metrics.py"),
    "nanobind": (),
    "yaml": ("config/file.py",),
}
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "multiprocessing"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
CORE_STDLIB = {
    "array",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "hashlib",
    "heapq",
    "itertools",
    "operator",
    "struct",
    "typing",
    "types",
    "functools",
    "math",
    "weakref",
}


Modules = list[tuple[str, str, list[ast.AST]]]


def imported(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_import_linter_contracts() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--config", str(ROOT / ".importlinter"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_core_imports_only_core_errors_and_pure_stdlib(modules: Modules) -> None:
    for name, _, nodes in modules:
        if not name.startswith("core/"):
            continue
        for module in imported(nodes):
            pure = module.split(".")[0] in CORE_STDLIB or module.startswith(("ridgeline.core", "ridgeline.errors"))
            assert pure, f"{name} imports {module}"


def test_arrays_stay_in_the_computing_wing(modules: Modules) -> None:
    for name, _, nodes in modules:
        if not name.startswith("compute/"):
            assert not {"numpy", "torch", "scipy"} & {m.split(".")[0] for m in imported(nodes)}, name


@pytest.mark.parametrize("folder", ["core", "sim", "planning", "config", "observe", "server", "cli"])
def test_tests_of_the_thinking_wing_need_no_arrays(folder: str) -> None:
    for path in (ROOT / "tests" / folder).rglob("*.py"):
        modules = {module.split(".")[0] for module in imported(list(ast.walk(ast.parse(path.read_text()))))}
        assert not {"numpy", "torch", "transformers", "tiny", "checkpoints"} & modules, path


@pytest.mark.parametrize("module", sorted(ONE_PLACE))
def test_one_place_each(modules: Modules, module: str) -> None:
    for name, _, nodes in modules:
        if module in {m.split(".")[0] for m in imported(nodes)}:
            assert name.startswith(ONE_PLACE[module]) if ONE_PLACE[module] else False, f"{name} imports {module}"


def test_extension_is_touched_in_two_places_only(modules: Modules) -> None:
    for name, _, nodes in modules:
        touches = any(m.endswith("._C") or m == "_C" for m in imported(nodes)) or any(
            isinstance(node, ast.alias) and node.name == "_C" for node in nodes
        )
        assert not touches or name.startswith(("compute/cpu/", "facts/hardware/ceilings.py")), name


def test_environment_is_read_in_one_file(modules: Modules) -> None:
    for name, _, nodes in modules:
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "putenv"}:
                assert name == "config/env.py", f"{name}:{node.lineno} reads the environment"


def test_no_code_carrying_serialisation_or_evaluation(modules: Modules) -> None:
    for name, _, nodes in modules:
        assert not FORBIDDEN_MODULES & {m.split(".")[0] for m in imported(nodes)}, name
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in FORBIDDEN_CALLS, f"{name}:{node.lineno} calls {node.func.id}"


def test_yaml_is_parsed_and_never_constructed(modules: Modules) -> None:
    nodes = next(nodes for name, _, nodes in modules if name == "config/file.py")
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "yaml"}
    assert "parse" in used and {name for name in used if not name.endswith(("Event", "Error"))} == {"parse", "SafeLoader"}


def test_only_the_command_line_exits_the_process(modules: Modules) -> None:
    """And the engine's process, a program of its own."""
    programs = "cli/", "engine/process.py"
    for name, _, nodes in modules:
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr in {"exit", "_exit"} and isinstance(node.value, ast.Name):
                leaves = node.value.id in {"sys", "os"}
                assert not leaves or name.startswith(programs), f"{name}:{node.lineno} exits the process"
            if isinstance(node, ast.Name) and node.id == "SystemExit":
                assert name.startswith("cli/"), f"{name}:{node.lineno} raises SystemExit"


def test_one_door_in(modules: Modules) -> None:
    """Only `engine.admit` builds what the engine accepts."""
    for name, _, nodes in modules:
        if name == "engine/admit.py":
            continue
        brings = {
            alias.asname or alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.module == "ridgeline.core.params"
            for alias in node.names
            if alias.name == "Admitted"
        }
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in brings, f"{name}:{node.lineno} builds an Admitted request"


def test_model_families_are_named_in_their_files_and_tables_only(modules: Modules) -> None:
    tables = ("facts/hub/packaged.py", "text/files.py", "text/bpe.py", "text/tools/families.py")
    # a RoPE scaling "llama3", EAGLE's layer, which is one of "llama" where its file names none, programs "llama-server" and "llama.cpp"
    words_of_files = (
        "facts/headers/config_rope.py",
        "facts/headers/heads.py",
        "facts/headers/rope.py",
        "facts/hub/others.py",
        "config/env.py",
        "bench/servers.py",
    )
    allowed = ("models/", *tables, *words_of_files)
    for name, _, nodes in modules:
        if name.startswith(allowed):
            continue
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 40:
                assert not node.value.lower().startswith(("gemma", "llama", "qwen", "mistral", "phi")), (
                    f"{name}:{node.lineno} {node.value!r}"
                )


@pytest.mark.parametrize("blocked", ["numpy", "torch"])
def test_core_and_command_line_import_without(modules: Modules, blocked: str) -> None:
    folders = ("core/", "sim/", "server/", "engine/", "cli/", "facts/", "models/", "text/", "bench/")
    names = [n[:-3].replace("/", ".") for n, _, _ in modules if n.startswith(folders)]
    names = [f"ridgeline.{n.removesuffix('.__init__')}" for n in names if not n.endswith("__main__")]
    program = f"import sys\nsys.modules[{blocked!r}] = None\nimport importlib\nfor n in {names!r}: importlib.import_module(n)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
