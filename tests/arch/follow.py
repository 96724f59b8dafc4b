"""Follows one streamed completion by execution: which files of the package ran between the request and its last event, in both processes.

`python tests/arch/follow.py` prints them per process, in the order of their first call and with the function that was entered first;
`test_follow.py` holds their number, and the sum of their lines as whole files, to a budget. What runs at start-up alone does not count:
`serve demo` is warm and has answered. Nor does what a clock starts: several requests are followed, and what runs each time is their own.
Every call of a Python function is seen. Of csrc the machinery of a step counts, from the one
native call on: files are followed through the names that they use, those of experts only where the model has some. Kernels and the sampler
behind its tables are a list of their own: all of them, whichever the model uses.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import ridgeline

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(ridgeline.__file__).parent
"""The package as it is installed: only there is the compiled extension."""
CSRC = ROOT / "csrc"
MACHINERY, STEP = "runtime/", "runtime/plan.cpp"
"""Folder of csrc without kernels, and the file that a step enters."""
EXPERTS = tuple(f"runtime/{name}" for name in ("experts.h", "experts.cpp", "expert_store.h", "expert_store.cpp"))
EXPERT_OPS = "compute/ops/experts.py"
"""Machinery that runs only for ops of this file: a rule of it is called at load where the model's op list has one."""

ROUNDS = 4
"""Requests that are followed, one after another."""

CALL = re.compile(r"(?<![.>:\w])([a-z]\w*)\(")
DEFINED = re.compile(r"^\w[\w:<>*& ]*?\b([a-z]\w*)\([^;]*?\)[^;{]*\{", re.MULTILINE)
MEMBER = re.compile(r"\b([A-Z]\w*)::~?\w+\(")
"""In C++: a free function that is called, one that is defined, and a class of which a member is defined."""

BODY = {
    "model": "demo", "prompt": "The three largest cities of France are", "max_tokens": 16, "temperature": 0.7, "seed": 1,
    "stop": ["zzz"], "ignore_eos": True, "stream": True,
}  # fmt: skip
SERVE = "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()"
BOOTSTRAP = "import sys; sys.path.append({here!r}); import follow; follow.listen()"


@dataclass(frozen=True)
class Followed:
    """Path → lines of the file, for each process (the executor's half of the engine by itself) in the order of first calls, and for csrc.

    entered  (process, path) → the first function that was called in the file
    """

    front: dict[str, int]
    engine: dict[str, int]
    compute: dict[str, int]
    native: dict[str, int]
    kernels: dict[str, int]
    entered: dict[tuple[str, str], str]

    @property
    def files(self) -> dict[str, int]:
        """Everything but kernels, once each."""
        return {**self.front, **self.engine, **self.compute, **self.native}


def listen() -> None:
    """In a process that is followed: notes every function of the package that is called between the files `begin` and `end` of a round, in
    order."""
    folder, source = Path(os.environ["PYTHON_FOLLOW"]), f"{os.environ['PYTHON_FOLLOW_SOURCE']}/"
    seen: dict[tuple[str, str], None] = {}

    def note(frame: object, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(source):  # type: ignore[attr-defined]
            seen.setdefault((frame.f_code.co_filename, frame.f_code.co_qualname))  # type: ignore[attr-defined]

    def watch() -> None:
        rounds, has_experts = [], False
        for number in range(ROUNDS):
            while not (folder / f"{number}.begin").exists():
                time.sleep(0.01)
            has_experts = has_experts or any(path.endswith(EXPERT_OPS) and name.endswith("_rule") for path, name in list(seen))
            seen.clear()
            (folder / f"{os.getpid()}.ready-{number}").touch()
            while not (folder / f"{number}.end").exists():
                time.sleep(0.01)
            rounds.append([(path.removeprefix(source), name) for path, name in list(seen) if name != "<module>"])
        always = set(rounds[0]).intersection(*rounds)
        part = {"argv": sys.orig_argv, "calls": [each for each in rounds[0] if each in always], "has_experts": has_experts}
        (folder / f"{os.getpid()}.part").write_text(json.dumps(part))
        (folder / f"{os.getpid()}.part").rename(folder / f"{os.getpid()}.json")

    threading.Thread(target=watch, daemon=True).start()
    threading.setprofile(note)
    sys.setprofile(note)


def ask(url: str, **more: object) -> str:
    request = Request(f"{url}/v1/completions", json.dumps(BODY | more).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        text: str = answer.read().decode()
    assert text.endswith("data: [DONE]\n\n"), text
    return text


def until(wanted: int, folder: Path, pattern: str) -> list[Path]:
    """Files of this pattern, as soon as so many are there."""
    end = time.monotonic() + 10
    while len(found := sorted(folder.glob(pattern))) < wanted:
        assert time.monotonic() < end, f"{len(found)} of {wanted} processes answered"
        time.sleep(0.02)
    return found


def calls(folder: Path) -> tuple[dict[str, list[list[str]]], bool]:
    """(path and name of functions that ran, in order of first calls, for "front" and "engine"; True if the model has experts)."""
    (folder / "sitecustomize.py").write_text(BOOTSTRAP.format(here=str(Path(__file__).parent)))
    path = os.pathsep.join([str(folder), str(SOURCE.parent)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHON_FOLLOW": str(folder), "PYTHON_FOLLOW_SOURCE": str(SOURCE)}
    command = [sys.executable, "-c", SERVE, "serve", "demo", "--port", "0", "--max-model-len", "512"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        end = time.monotonic() + 60
        while not (ready := re.search(r" at (http://\S+)", (folder / "log").read_text())):
            assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.05)
        ask(ready[1], ignore_eos=False, structured_outputs={"regex": "(.|\\n)*"})  # behind it the vocabulary has been read for grammars
        ask(ready[1])
        for number in range(ROUNDS):
            (folder / f"{number}.begin").touch()
            until(2, folder, f"*.ready-{number}")
            ask(ready[1])
            (folder / f"{number}.end").touch()
        parts = [json.loads(part.read_text()) for part in until(2, folder, "*.json")]
    finally:
        process.terminate()
        process.wait(timeout=20)
    found = {"engine" if "ridgeline.engine.process" in part["argv"] else "front": part["calls"] for part in parts}
    return found, any(part["has_experts"] for part in parts)


def lines(path: Path) -> int:
    return path.read_text().count("\n")


def csrc_of_a_step(has_experts: bool) -> tuple[dict[str, int], dict[str, int]]:
    """(files of the machinery that a step reaches through includes and names, files of kernels and of the sampler) of csrc."""
    sources = (path for path in sorted(CSRC.rglob("*")) if path.suffix in (".cpp", ".h", ".def"))
    texts = {path.relative_to(CSRC).as_posix(): path.read_text() for path in sources}
    machinery = {path: text for path, text in texts.items() if path.startswith(MACHINERY)}
    headers = "".join(text for path, text in machinery.items() if path.endswith(".h"))
    declared = {name for name in CALL.findall(headers) if not re.search(rf"\b(?:inline|template)\b[^;{{]*\b{name}\(", headers)}
    defines = {path: set(DEFINED.findall(text)) | set(MEMBER.findall(text)) for path, text in machinery.items() if path.endswith(".cpp")}
    reached, todo = dict[str, None](), [STEP]
    while todo:
        path = todo.pop(0)
        if path in reached or (path in EXPERTS and not has_experts):
            continue
        reached[path] = None
        used = set(CALL.findall(machinery[path])) & declared if path.endswith(".cpp") else set()
        used |= set(re.findall(r"\b[A-Z]\w+", machinery[path]))
        todo += [name for name in re.findall(r'#include "(.+?)"', machinery[path]) if name in machinery]
        todo += [name for name, names in defines.items() if names & used]
    found = {f"csrc/{path}": lines(CSRC / path) for path in reached}
    return found, {f"csrc/{path}": lines(CSRC / path) for path in texts if path not in machinery}


def follow() -> Followed:
    with tempfile.TemporaryDirectory() as folder:
        found, has_experts = calls(Path(folder))
    by_process = {process: {path: lines(SOURCE / path) for path, _ in each} for process, each in found.items()}
    entered = {(process, path): name for process, each in found.items() for path, name in reversed(each)}
    engine = by_process["engine"]
    native, kernels = csrc_of_a_step(has_experts)
    return Followed(
        by_process["front"],
        {path: count for path, count in engine.items() if not path.startswith(("compute/", "models/"))},
        {path: count for path, count in engine.items() if path.startswith(("compute/", "models/"))},
        native,
        kernels,
        entered,
    )


def print_files(title: str, files: dict[str, int], entered: dict[str, str]) -> None:
    print(f"{title}: {len(files)} files, {sum(files.values())} lines as whole files")
    print(f"  {'file lines':>10}  {'file':40}{'  entered at' if entered else ''}".rstrip())
    for path, count in files.items():
        print(f"  {count:10}  {path:40}  {entered.get(path, '')}".rstrip())


def main() -> None:
    found = follow()
    for title, process, files in (
        ("front end", "front", found.front),
        ("engine", "engine", found.engine),
        ("executor", "engine", found.compute),
    ):
        print_files(title, files, {path: found.entered[process, path] for path in files})
    print_files("csrc, as reached from the step", found.native, {})
    print(f"in all: {len(found.files)} files, {sum(found.files.values())} lines as whole files")
    print_files("kernels and sampler of csrc, not counted, whichever the model uses", found.kernels, {})


if __name__ == "__main__":
    main()
