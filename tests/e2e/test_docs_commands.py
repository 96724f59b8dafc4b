"""The commands of README.md and docs/guide are run, page by page and in order, as a reader would: `sh` line by line, `python` as it stands.

A server that a line starts runs while the next lines ask it (`curl`, `prometheus`, `bench serve`, `ps`); without one the shared demo's
does. What is put in the place of what stands there is in `STANDS_FOR` and `Reader.here`. Programs marked `py` need a package that the tests
do not bring: they, and its installation, run by night. A command in a sentence or a table stands in a block too, with its arguments.
"""

import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import venv
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
import yaml
from gguf_files import model_file, value
from hub_server import Hub, serve_hub
from processes import COMMAND, SOURCE

from ridgeline import __version__
from ridgeline.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
FENCE = re.compile(r"^```(\S*)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = (
    "(?:ridgeline|python3?|pip|pytest|make|docker|podman|sudo|curl|wget|openssl|prometheus|alertmanager|systemctl|systemd-analyze|journalctl|apt|"
    "apt-get|npm|npx|git|claude|codex|opencode|k6|wrk|locust|kubectl|helm|chmod|chown|umask|kill|cp|mkdir|cd|export|source|echo|printf|sha256sum)"
)
INLINE = re.compile(rf"`((?:[A-Z_]+=\S+ )*{PROGRAMS}(?: [^`]+)?)`")
KINDS = {"sh", "python", "py", "toml", "yaml", "json", ""}
NEEDED = re.compile(r"\b(curl|openssl|prometheus|systemctl|systemd-analyze)\b")
"""Programs that are not everywhere."""
OTHERS = {"agents": "scripted_server"}
"""Page → fixture of the server that its Python asks, where that is not the demo's."""
STANDS_FOR = {
    # this clone; a wheel is this clone, compiled; these are the tests
    rf"""(?<= |")(?:ridgeline-{re.escape(__version__)}-\S+?\.whl|\.)(?=$|\[|")""": str(ROOT), r" && pytest$": "",
    # a root of the reader's own, in which services are enabled and not started
    r"\bsudo ": "", r" /etc/": ' "$PWD"/etc/', r"\bsystemctl enable --now ": 'systemctl --root="$PWD" enable ',
    # verbs that compute: a model without weights; the demo itself answers in the blocks of Python, and is served where a file names it
    r"\bridgeline (serve|run|generate|admin swap) (--model )?(demo|gemma3:270m|qwen3:0\.6b|path/to/model\.gguf(?! --expect))(?= |$)":
    r"ridgeline \1 \2'fake:{}'",
    # the local hub's models in the place of those whose digest is known
    r"\bqwen3:0\.6b\b": "org/name", r"path/to/model\.gguf": "model.gguf",
    r"^curl ": "curl --fail --silent --show-error --max-time 20 ",
}  # fmt: skip
SMALL = {"facts.hardware.ceilings.MAX_DRAM_BYTES": 256 << 20, "compute.bench.kernels.MAX_COPIES": 8, "cli.plan_verify.ROUNDS": 1,
         "cli.plan_front_end.PROMPTS": 1, "cli.plan_front_end.REST_SECONDS": 0}  # fmt: skip
"""Of benchmarks: a system takes seconds to provide memory beyond its largest cache. `tests/compute/bench` looks at what they say."""
READERS: dict[str, Callable[[str], Any]] = {"yaml": yaml.safe_load, "json": json.loads, "toml": tomllib.loads}
KEPT = ("curl ", "ridgeline bench serve", "ridgeline bench compare", "ridgeline ps", "ridgeline admin", "ridgeline top",
        "ridgeline route", "prometheus ")  # fmt: skip
"""Lines during which the server of the line before runs on."""


class Reader:
    """Who reads a page: a folder of their own, the hub, the address of the server that answers at port 8000."""

    def __init__(self, folder: Path, demo_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.demo_url, self.patch = folder, demo_url, monkeypatch
        self.server: subprocess.Popen[bytes] | None = None
        self.url, self.is_drained = demo_url, False

    def here(self, line: str) -> str:
        """The line with what stands for something else replaced."""
        line = line.split("  # ")[0].rstrip()
        for pattern, other in STANDS_FOR.items():
            line = re.sub(pattern, other, line)
        if line.startswith("ridgeline bench serve"):
            line += f" --url {self.url}"
        return re.sub(r":8000(?=/|\s|$)", f":{self.url.rpartition(':')[2]}", line)

    def run(self, line: str) -> None:
        """One line, to its end, or until its server is ready. Fails if its status is not 0."""
        if not line.startswith(KEPT):
            self.stop()
        line = self.here(line)
        before, _, last = line.rpartition(" && ")
        if before and last.startswith("ridgeline "):
            self.run(before)
            line = last
        variables, serves, words = line.partition("ridgeline serve ")
        if serves:
            self.serve(variables, shlex.split(words))
        elif line.startswith("ridgeline route "):
            self.route(line)
        elif line.startswith("prometheus "):
            self.scrape(shlex.split(line))
        elif line.startswith("ridgeline ") and not re.search(r"[|>]|--install-completion", line):
            self.in_process(shlex.split(line)[1:])
        else:  # more than one command: the shell stays, and completion knows it by that
            done = subprocess.run(["bash", "-ec", f"{line}\n:"], capture_output=True, text=True, timeout=90, check=False)
            assert done.returncode == 0 and "WARNING" not in done.stderr, (line, done.stdout, done.stderr)

    def in_process(self, words: list[str]) -> None:
        self.patch.setattr(sys, "argv", ["ridgeline", *words])
        bare_run = words[0] == "run" and len(words) == 2
        self.patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello" if bare_run else b"")))
        if words[0] in ("run", "generate"):
            self.patch.setattr(sys, "argv", [*sys.argv, *(() if "--max-tokens" in words else ("--max-tokens", "8"))])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, words
        self.is_drained |= words[:2] == ["admin", "drain"]

    def serve(self, variables: str, words: list[str]) -> None:
        """Starts the server on a free port; one that records answers one request."""
        log = self.folder / "serve.log"
        settings = dict(each.split("=", 1) for each in shlex.split(variables))
        with log.open("wb") as file:
            command = [*COMMAND, "serve", *words, "--port", "0", "--log-level", "info"]
            self.server = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **settings})
        end = time.monotonic() + 60
        while not (found := re.search(r"(https?)://[^\s\"]+:(\d+)", log.read_text().partition("Ridgeline serves")[2])):
            assert self.server.poll() is None and time.monotonic() < end, (words, log.read_text())
            time.sleep(0.02)
        self.url = f"{found[1]}://127.0.0.1:{found[2]}"
        if "--record" in words:
            self.run(f'curl {self.url}/v1/completions -H \'Content-Type: application/json\' -d \'{{"prompt": "a", "max_tokens": 4}}\'')

    def route(self, line: str) -> None:
        """Runs a router in front of the server, which stands for the first one named, until that one is found ready."""
        command = [*COMMAND, *shlex.split(line)[1:], "--port", "0"]
        command[command.index("--replica") + 1] = self.url
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            timer = threading.Timer(30, process.kill)
            timer.start()
            try:
                assert process.stderr is not None and any(" routes at http" in line for line in process.stderr), command
            finally:
                timer.cancel()
                process.terminate()

    def scrape(self, command: list[str]) -> None:
        """Runs Prometheus with the files of `deploy`, in a hurry, until it has read the server's metrics."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        file = self.folder / "deploy" / "prometheus.yml"
        text = file.read_text().replace("127.0.0.1:8000", urlsplit(self.url).netloc)
        file.write_text(re.sub(r"scrape_interval: \S+", "scrape_interval: 200ms", text))
        with (self.folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            end, found = time.monotonic() + 30, ""
            while '"1"]' not in found:
                assert process.poll() is None and time.monotonic() < end, (self.folder / "prometheus.log").read_text()
                time.sleep(0.1)
                with suppress(OSError), urlopen(f'http://{address}/api/v1/query?query=up{{job="ridgeline"}}', timeout=5) as answer:
                    found = answer.read().decode()
        finally:
            process.terminate()
            process.wait(timeout=30)

    def stop(self) -> None:
        """Ends the server, as a service manager does, unless a line has: a signal that comes while its process ends would kill it."""
        if self.server is not None:
            if not self.is_drained:
                self.server.send_signal(signal.SIGTERM)
            assert self.server.wait(timeout=30) == 0, (self.folder / "serve.log").read_text()
        self.server, self.url, self.is_drained = None, self.demo_url, False


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve_hub() as hub:
        tiny = model_file({"general.file_type": value("u32", 15), "general.name": value("str", "Tiny")}).build()
        hub.files["org/name"] = {"name-Q4_K_M.gguf": tiny}
        yield hub


@pytest.fixture
def reader(hub: Hub, demo_file: Path, demo_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """In an empty folder with a model, `ridgeline` on the path, and caches of their own, in which the demo is assembled already."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_", "RIDGELINE_"))]:
        monkeypatch.delenv(name)
    work, programs, cache = (tmp_path / name for name in ("work", "bin", "cache/ridgeline"))
    for folder in (work, programs, cache):
        folder.mkdir(parents=True)
    (cache / demo_file.name).symlink_to(demo_file)
    (work / "model.gguf").symlink_to(demo_file)
    shutil.copytree(ROOT / "deploy", work / "deploy")
    (work / "etc/systemd/system").mkdir(parents=True)
    # pip finds what each line needs, here, and says what it would install: the environment of the tests stays as it is
    pip = shlex.join([sys.executable, "-m", "pip"]), "--dry-run --quiet --no-index --no-build-isolation"
    for name, (command, more) in {"ridgeline": (shlex.join(COMMAND), ""), "pip": pip}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@" {more}\n')
        (programs / name).chmod(0o755)
    places = {"XDG_CACHE_HOME": "cache", "XDG_STATE_HOME": "state", "HF_HOME": "hf", "OLLAMA_MODELS": "ollama"}
    for name, folder in {**places, "LLAMA_CACHE": "llama"}.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    for name, text in {"HF_ENDPOINT": hub.url, "PYTHONPATH": str(SOURCE), "COLUMNS": "100", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.chdir(work)
    for name, small in SMALL.items():
        monkeypatch.setattr(f"ridgeline.{name}", small)
    reader = Reader(work, demo_server.url, monkeypatch)
    with tempfile.TemporaryDirectory() as runtime:  # sockets have short paths
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        yield reader
        if reader.server is not None:
            reader.server.kill()
            reader.server.wait()


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Kind, name of a file, and text of each fenced block."""
    return FENCE.findall(page.read_text())


def lines(page: Path) -> list[str]:
    """Its command lines."""
    return [line for kind, _, text in blocks(page) if kind == "sh" for line in text.splitlines() if line]


def programs_for_night(page: Path) -> list[str]:
    return [text for kind, _, text in blocks(page) if kind == "py"]


def run_program(python: str | Path, program: str) -> None:
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_the_page_work(page: Path, reader: Reader, demo_server: Any, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(OTHERS[page.stem]) if page.stem in OTHERS else demo_server
    if missing := [name for name in NEEDED.findall("\n".join(lines(page))) if shutil.which(name) is None]:
        pytest.skip(f"{missing[0]} is not installed")
    nightly = programs_for_night(page)
    programs = []
    for kind, name, text in blocks(page):
        if name:
            (reader.folder / name).write_text(text)
        if kind == "sh":
            for line in filter(None, text.splitlines()):
                if not (nightly and line.startswith("pip install ")):
                    reader.run(line)
            reader.stop()
        elif kind == "python":
            programs.append(text.replace("http://127.0.0.1:8000", server.url))
        elif address := re.search(r'"?(?:apiBase|baseURL|base_url)"? ?[:=] "?http://127\.0\.0\.1:8000(/v1)"?', text):
            (model,) = json.loads(server.get(f"{address[1]}/models")[1])["data"]
            assert model["id"] in text, "settings of others name a model that is served, at an address that answers"
    if programs:
        run_program(sys.executable, "\n".join(programs))


@pytest.mark.night
@pytest.mark.parametrize("page", list(filter(programs_for_night, PAGES)), ids=lambda page: page.stem)
def test_programs_that_need_a_package_work(page: Path, demo_server: Any, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    for line in filter(re.compile("pip install ").match, lines(page)):
        subprocess.run([python, "-m", *shlex.split(line)], check=True, timeout=600)
    for program in programs_for_night(page):
        run_program(python, program.replace("http://127.0.0.1:8000", demo_server.url))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_are_of_known_kinds(page: Path) -> None:
    """So nothing that looks like a command stands in a block that is not run."""
    text = page.read_text()
    assert text.count("```") == 2 * len(blocks(page)) and not re.search("~~~|^( {4}|\t)", FENCE.sub("", text), re.MULTILINE)
    for kind, name, text in blocks(page):
        assert kind in KINDS, kind
        if kind == "py":
            compile(text, str(page), "exec")
        elif kind in READERS:
            assert name and READERS[kind](text)
        elif not kind:
            assert page.name == "README.md" and not re.search(rf"^\s*(\$|{PROGRAMS}) ", text, re.MULTILINE)


def spoken_of(page: Path) -> list[str]:
    """Commands in sentences and tables, less what stands in capitals: `ridgeline plan` of `ridgeline plan MODEL`."""
    return [re.sub(r" [A-Z:]+(?= |$)", "", command) for command in INLINE.findall(FENCE.sub("", page.read_text()))]


def test_commands_in_sentences_stand_in_blocks_too() -> None:
    """With every argument, so there is none that no test runs."""
    run = "\n".join(line for page in PAGES for line in lines(page))
    for page in PAGES:
        for command in spoken_of(page):
            assert re.search(rf"(?<![\w-]){re.escape(command)}(?![\w-])", run), f"{page.name}: no test runs `{command}`; give it a block"


def test_commands_in_sentences_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nridgeline ps\n```\nSay `ridgeline plan MODEL`, `A=1 ridgeline ps`, `chmod 600 f` or `demo`.\n")
    assert spoken_of(page) == ["ridgeline plan", "A=1 ridgeline ps", "chmod 600 f"]
