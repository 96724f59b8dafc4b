"""Mistaken command lines: each ends with status 2, its cause in one line, and where a suggestion is printed, it works when it is run."""

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.cli.checks import CHECKS, Unchecked, find_check
from ridgeline.cli.main import VERBS, main
from ridgeline.cli.suggest import MAX_REPAIRS, check_line, find_suggestion
from ridgeline.errors import ConfigError

FAKE = """'fake:{"rows": 4}'"""
H100 = "--device h100"
MISTAKES: list[tuple[str, str, str | None]] = [
    # verbs
    ("serv {fake} --port 0", "'serv'", "serve {fake} --port 0"),
    ("Plan llama-3-8b --device h100", "'Plan'", "plan llama-3-8b --device h100"),
    ("plna llama-3-8b --device h100", "'plna'", "plan llama-3-8b --device h100"),
    ("simulate llama-3-8b --requests 5", "`ridgeline sim`", "sim llama-3-8b --requests 5"),
    ("benchmark kernels --shape 64x", "`ridgeline bench`", "bench kernels --shape 8192x2048"),
    ("bench kernel --tokens 1 --shape 64x64 --format Q8_0", "kernel", "bench kernels --tokens 1 --shape 64x64 --format Q8_0"),
    ("what-if {trace} --no-levers --seeds 1", "'what-if'", "whatif {trace} --no-levers --seeds 1"),
    ("complete {fake} hi", "`ridgeline generate`", "generate {fake} hi"),
    ("rote --replica http://localhost:1 --port 0", "'rote'", "route --replica http://localhost:1 --port 0"),
    ("investgate TokensSlow", "'investgate'", "investigate TokensSlow"),
    ("batc in.jsonl out.jsonl --model {fake}", "'batc'", None),  # there is no file in.jsonl
    ("demo", "'demo'", "serve demo"),
    ("sing", "'sing'", None),
    ("lst", "'lst'", "list"),
    ("ls --jsn", "`ridgeline list`", "list --json"),
    ("shwo demo", "'shwo'", "show demo"),
    ("download demo", "`ridgeline pull`", "pull demo"),
    ("chat {fake} hi", "`ridgeline run`", "run {fake} hi"),
    ("rmm demo", "'rmm'", None),  # nobody is led to a removal
    ("admin drian", "drian", None),  # nor to the end of a server
    ("chaos --jsn", "--jsn", "chaos --json"),
    ("admin knobs step_ms", "name=value", None),
    ("--versoin", "--versoin", "--version"),
    # flags that do not exist
    ("serve {fake} --port 0 --max-num-sqs 4", "--max-num-sqs", "serve {fake} --port 0 --max-num-seqs 4"),
    ("serve {fake} --port 0 --no-such-flag", "--no-such-flag", "serve {fake} --port 0"),
    ("serve {fake} --port 0 --no-such-flag=3", "--no-such-flag", "serve {fake} --port 0"),
    ("serve --port 0 --no-such-flag {fake}", "--no-such-flag", "serve --port 0 {fake}"),
    ("generate --model {fake} hi", "--model", "generate {fake} hi"),
    ("plan --device h100 --model=llama-3-8b", "--model", "plan llama-3-8b --device h100"),
    ("serve {fake} --model demo --port 0", "the same setting, model", "serve {fake} --port 0"),
    ("serve {fake} --port 0 --tensor-parallel-size 2", "one device", "serve {fake} --port 0"),
    ("serve {fake} --port 0 --trust-remote-code", "no code of a model", "serve {fake} --port 0"),
    ("plan llama-3-8b --devise h100", "--devise", "plan llama-3-8b --device h100"),
    ("plan llama-3-8b --device h100 --gpus 2", "--gpus", "plan llama-3-8b --device h100"),
    ("generate {fake} hi --temprature 0.5", "--temprature", "generate {fake} hi --temperature 0.5"),
    ("sim llama-3-8b --request 5", "--request", "sim llama-3-8b --requests 5"),
    ("list --al", "--al", "list --all"),
    ("ps --jason", "--jason", "ps --json"),
    ("plan -rf ''", "-r", None),
    ("plan llama-3-8b -x", "-x", None),
    ("explain --windw 5m", "--windw", "explain --window 5m"),
    ("route --replca http://localhost:1 --port 0", "--replca", "route --replica http://localhost:1 --port 0"),
    ("batch {requests} out.jsonl --model {fake} --max-num-sqs 4", "--max-num-sqs",
     "batch {requests} out.jsonl --model {fake} --max-num-seqs 4"),
    ("laws --step 50 --workers 1", "--step", "laws --steps 50 --workers 1"),
    # values
    ("serve {fake} --port 70000", "--port", "serve {fake}"),
    ("serve {fake} --port 0 --max-num-seqs 0", "--max-num-seqs is 0", "serve {fake} --port 0 --max-num-seqs 1"),
    ("serve {fake} --port 0 --scheduling-policy lifo", "lifo", "serve {fake} --port 0 --scheduling-policy fcfs"),
    ("serve {fake} --port 0 --swap-space nan", "nan", "serve {fake} --port 0"),
    ("serve {fake} --port 0 --api-key ''", "--api-key", "serve {fake} --port 0"),
    ("serve {fake} --port 0 --host 0.0.0.0", "--host 0.0.0.0", "serve {fake} --port 0 --host 127.0.0.1"),
    ("serve {fake} --port", "requires an argument", "serve {fake}"),
    ("plan llama-3-8b --device rtx4091", "rtx4091", "plan llama-3-8b --device rtx-4090"),
    ("plan llama-3-8b --device h100 --slo foo=1", "foo=1", "plan llama-3-8b --device h100"),
    ("plan llama-3-8b --device h100 --slo itl=50", "no unit", "plan llama-3-8b --device h100 --slo itl=50ms"),
    ("plan llama-3-8b --device h100 --slo itl=50ms,ttf=1s", "ttf=1s", "plan llama-3-8b --device h100 --slo itl=50ms"),
    ("plan llama-3-8b --device h100 --context 1000000", "outside 2", "plan llama-3-8b --device h100 --context 8192"),
    ("plan llama-3-8b --device h100 --dtype q4k", "q4k", "plan llama-3-8b --device h100 --dtype q4_k"),
    ("plan llama-3-8b --device h100 --kv-dtype int9", "int9", "plan llama-3-8b --device h100 --kv-dtype int8"),
    ("plan llama-3-8b --device h100 --count 3 --tensor-parallel-size 2", "multiple",
     "plan llama-3-8b --device h100 --count 4 --tensor-parallel-size 2"),
    ("plan llama-3-8b --device h100 --tensor-parallel-size 3", "does not divide",
     "plan llama-3-8b --device h100 --tensor-parallel-size 2 --count 2"),
    ("plan llama-3-8b --device h100 --memory nan", "nan", "plan llama-3-8b --device h100"),
    ("plan llama-3-8b --device h100 --workload in=9000,out=1", "outside", "plan llama-3-8b --device h100"),
    ("plan llama-3-8b --device h100 --json=true", "--json", "plan llama-3-8b --device h100 --json"),
    ("plan llama-3-8b --device h100 --html /no/such/page.html", "/no/such", "plan llama-3-8b --device h100 --html page.html"),
    ("sim llama-3-8b --requests 0", "requests=0", "sim llama-3-8b --requests 1"),
    ("sim llama-3-8b --requests 5 --set max-num-seq=8", "max-num-seq", "sim llama-3-8b --requests 5 --set max_num_seqs=8"),
    ("sim llama-3-8b --requests 5 --set routing=foo", "routing", "sim llama-3-8b --requests 5"),
    ("sim llama-3-8b --requests 5 --set device=rtx4091", "rtx4091", "sim llama-3-8b --requests 5 --set device=rtx-4090"),
    ("sim llama-3-8b --requests 5 --prompt log:5", "log:5", "sim llama-3-8b --requests 5"),
    ("sim llama-3-8b --users 2 --requests 5 --knee", "closed loop", "sim llama-3-8b --users 2 --requests 5"),
    ("whatif {trace} --no-levers --seeds 1 --today kv_page=3", "kv_page", "whatif {trace} --no-levers --seeds 1"),
    ("whatif {trace} --no-levers --seeds 101", "--seeds", "whatif {trace} --no-levers"),
    ("generate {fake} hi --temperature 99", "temperature", "generate {fake} hi"),
    ("generate {fake} hi --logit-bias foo", "logit_bias", "generate {fake} hi"),
    ("generate {fake} hi --n 3 --best-of 2", "best_of", "generate {fake} hi --n 3"),
    ("bench kernels --shape 3", "'3'", "bench kernels --shape 8192x2048"),
    ("bench gpu --only foo --dry-run", "foo", "bench gpu --only ceilings --dry-run"),
    ("bench serve --streams x", "'x'", None),  # no server runs
    ("explain --window 5", "'5'", "explain --window 5m"),
    ("investigate --window 5 TokensSlow", "'5'", "investigate --window 5m TokensSlow"),
    ("investigate NoSuchAlert", "NoSuchAlert", None),
    ("investigate --incident /no/such", "/no/such", None),
    ("top --interval 0", "--interval", None),  # no server runs
    ("profile --server 999999", "999999", None),  # no server runs
    ("route --port 0 --replica http://localhost:1 --routing cache", "'cache'",
     "route --port 0 --replica http://localhost:1 --routing cache-aware"),
    # models and files
    ("batch /no/such/in.jsonl out.jsonl --model {fake}", "/no/such/in.jsonl", None),
    ("merge demo /no/such/adapter merged", "no checkpoint of safetensors", None),
    ("plan no-such-model --device h100", "no-such-model", "plan demo --device h100"),
    ("show no-such-model", "no-such-model", "show demo"),
    ("pull no-such-model", "no-such-model", "pull demo"),
    ("rm no-such-model", "no-such-model", None),
    ("run no-such-model hi", "no-such-model", "run demo hi"),
    ("plan llama3-8b --device h100", "llama3-8b", "plan llama-3-8b --device h100"),
    ("serve no-such-model --port 0", "no-such-model", "serve demo --port 0"),
    ("serve {directory} --port 0", "holds no checkpoint", "serve demo --port 0"),
    ("serve 'fake:{{' --port 0", "fake:{{", "serve {fake} --port 0"),
    ("whatif /no/such/trace.jsonl", "ridgeline replay", None),
    ("replay /no/such/recording", "/no/such/recording", None),
    ("config explain no-such-model", "no-such-model", "config explain demo"),
    ("serve org/name --port 70000", "--port", "serve org/name"),  # only tried: a hub would have to be asked
    # arguments
    ("serve --port 0", "no model is given", "serve demo --port 0"),
    ("config explain", "no model is given", "config explain demo"),
    ("config explane demo", "explane", "config explain demo"),
    ("config", "Missing argument", "config explain demo"),
    ("plan llama-3-8b 8000 --device h100", "8000", "plan llama-3-8b --device h100"),
    ("whatif", "ridgeline replay", None),
    ("merge demo adapter", "Missing argument", None),
    ("explain one two", "two", "explain one"),
    ("rm", "Missing argument", None),
    ("show", "Missing argument", "show demo"),
    ("run", "no model was named", "run demo"),  # only tried: stdin is no terminal
    # several at once
    ("serv {fake} --prt 99999 --max-num-sqs 0", "'serv'", "serve {fake} --max-num-seqs 1"),
    ("rum {fake} --maxtokens 4 hi", "'rum'", "run {fake} --max-tokens 4 hi"),
    ("plan llama3-8b --device h10 --users 0 --slo itl=5", "itl=5", "plan llama-3-8b --device h100 --users 1 --slo itl=5ms"),
    ("pln llama-3-8b extra --device=rtx4091 --contxt 99999999", "'pln'", "plan llama-3-8b --device rtx-4090 --context 8192"),
    ("sim llama-3-8b --request 0 --set foo=1 --seeds 0", "--request", "sim llama-3-8b --requests 1"),
]  # fmt: skip
"""Command line, part of its error, the suggestion."""
SERVING = ("serve", "route", "explain", "investigate", "run demo", "bench kernels", "laws --steps", "config explain", "--version")
"""What begins a suggestion that is not run here: it would serve or measure. It is checked as when it is printed;
e2e/test_misconfigurations.py starts the servers."""


@pytest.fixture(autouse=True)
def empty_stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"time": 0, "prompt": 40, "output": 3}\n{"time": 1, "prompt": 40, "output": 3}\n')
    requests = tmp_path / "requests.jsonl"
    requests.write_text('{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi", "max_tokens": 1}}\n')
    (tmp_path / "empty").mkdir()
    return {"fake": FAKE, "trace": str(trace), "requests": str(requests), "directory": str(tmp_path / "empty")}


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    def serve(*_: object) -> None:
        raise AssertionError(f"it serves: {words}")

    monkeypatch.setattr("ridgeline.cli.serve._startup_notes", serve)
    monkeypatch.setattr(sys, "argv", ["ridgeline", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(("line", "cause", "works"), MISTAKES, ids=[line for line, _, _ in MISTAKES])
def test_n1_every_suggestion_works(
    line: str,
    cause: str,
    works: str | None,
    places: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(shlex.split(line.format(**places)), monkeypatch) == 2
    shown = capsys.readouterr()
    first, *rest = shown.err.splitlines()[-2 if works else -1 :]
    assert first.startswith("ridgeline: ") and cause.format(**places) in first and not shown.out
    if works is None:
        assert "This works" not in shown.err and "Try:" not in shown.err
        return
    lead, _, suggestion = rest[0].partition(": ridgeline ")
    assert shlex.split(suggestion) == shlex.split(works.format(**places))
    checked = check_line(shlex.split(suggestion))
    assert checked is None if lead == "This works" else lead == "Try" and isinstance(checked, Unchecked)
    if not suggestion.startswith(SERVING):
        assert run(shlex.split(suggestion), monkeypatch) == 0, capsys.readouterr().err


def test_there_are_sixty_over_all_verbs() -> None:
    assert len({line for line, _, _ in MISTAKES}) >= 60
    named = {line.split()[0] for line, _, _ in MISTAKES} & set(VERBS)
    assert named == set(VERBS) - {"doctor"}  # which has no flags


def test_every_verb_has_a_check() -> None:
    from ridgeline.cli.admin import VERBS as ADMIN
    from ridgeline.cli.bench import VERBS as BENCHES

    paths = {*VERBS, *(f"bench {verb}" for verb in BENCHES), *(f"admin {verb}" for verb in ADMIN)} - {"bench", "admin"}
    assert {path for path in paths if path not in CHECKS} == set()
    with pytest.raises(Unchecked):
        find_check("no such verb")({})


HOSTILE = [["plan", "-rf", ""], ["plan", "demo", "--device", "h100", "", ""], ["serve", "a\x1b[2Jb"], ["plan", "--slo"]]


@pytest.mark.parametrize("words", HOSTILE)
def test_x11_hostile_words_are_never_repeated(words: list[str]) -> None:
    error = check_line(words)
    suggestion = find_suggestion(words, error) if error is not None and not isinstance(error, Unchecked) else None
    repeated = shlex.split(suggestion.partition(": ")[2])[1:] if suggestion else []
    assert all(word and word.isprintable() for word in repeated)
    assert not suggestion or check_line(repeated) is None


def test_x11_what_no_repair_mends_has_no_suggestion() -> None:
    assert find_suggestion(["plan", "demo", "--device", "h100"], ConfigError("no")) is None
    assert find_suggestion(["plan", "demo", "--device", "h100"], ConfigError("no", fix={"--users": "1"})) is not None
    assert MAX_REPAIRS >= 4
