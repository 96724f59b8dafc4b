"""Figures of a benchmark against cases that are worked out by hand: percentiles, goodput, prompts, ratios, ceilings."""

import asyncio
import json
from array import array
from pathlib import Path

import pytest

from ridgeline.bench.client import PreparedRequest, RequestOutcome
from ridgeline.bench.compare import SCENARIOS, ServerRounds, ceilings, common_prefix, parse_scenarios, ratio, read_roofline, round_values
from ridgeline.bench.reconcile import ServerTtft
from ridgeline.bench.report import LatencySummary, LoadReport, as_dict, format_value, make_report, report_notes, table_rows
from ridgeline.bench.servers import ServerSize, parse_spec, resident_bytes
from ridgeline.bench.session import FIRST_WORD, WORDS, Measurement, Prompts, TokenCosts, _measure_costs
from ridgeline.cli.bench_compare import parse_servers
from ridgeline.cli.bench_serve import LoadOptions, make_loads
from ridgeline.config.env import model_stores
from ridgeline.errors import ConfigError
from ridgeline.facts.headers.read import describe_model
from ridgeline.planning.objectives import Objective
from ridgeline.sim.fleet.traffic import Arrival

SIZE = ServerSize(threads=2, streams=32, context=2048)


def outcome(intended: float, first: float, ended: float, output: int, error: str | None = None, **more: object) -> RequestOutcome:
    asked = PreparedRequest(0, b"", 10, 4)
    found = RequestOutcome(asked, intended, intended + 0.001, first, ended, 10, output, events=output, counted=True, error=error)
    for name, value in more.items():
        setattr(found, name, value)
    return found


def measured(*outcomes: RequestOutcome) -> Measurement:
    return Measurement(outcomes, 10.0, 0.5)


def test_the_servers_metrics_are_held_against_the_clients_times() -> None:
    """A thousandth of a second passes until a request is sent."""

    def told(server: ServerTtft, *first: float, busy: float = 0.5) -> list[str]:
        outcomes = [outcome(0.0, each, 2.0, 4) for each in first] * 50
        return report_notes(make_report(Measurement(outcomes, 10.0, busy, server), Objective()))

    assert not told(ServerTtft(100, 10.0), 0.101, 0.101) and not told(ServerTtft(100, 10.0), 0.1, 0.102)
    assert "TTFT from sending is 150.0 ms here, 100.0 ms by the server's" in told(ServerTtft(100, 10.0), 0.151, 0.151)[0]
    assert "the server counts 200 first tokens, this client asked for 100" in told(ServerTtft(200, 10.0), 0.1, 0.1)[0]
    assert "the server counts 99 first tokens" in told(ServerTtft(99, 10.0), 0.1, 0.1)[0]
    assert "this client is the bottleneck: its one thread was busy for 95%" in told(ServerTtft(100, 10.0), 0.1, 0.1, busy=9.5)[0]


def test_percentiles_are_the_nearest_rank() -> None:
    assert LatencySummary.of([float(value) for value in range(1, 101)]) == LatencySummary(50.0, 90.0, 95.0, 99.0, 50.5, 100.0, 100)
    assert LatencySummary.of([3.0, 1.0]) == LatencySummary(1.0, 3.0, 3.0, 3.0, 2.0, 3.0, 2)
    assert LatencySummary.of([]) == LatencySummary(0, 0, 0, 0, 0, 0, 0)


def test_figures_of_four_requests() -> None:
    """One meets both demands, one has a late first token, one slow gaps, and one fails after some tokens."""
    found = make_report(
        measured(
            outcome(100.0, 100.5, 101.0, 6, gaps=array("d", [0.1] * 5)),
            outcome(101.0, 103.0, 103.5, 6, gaps=array("d", [0.1] * 5)),
            outcome(102.0, 102.5, 110.0, 4, gaps=array("d", [2.5] * 3), cached=5),
            outcome(103.0, 103.1, 103.2, 2, "disconnected", message="gone"),
        ),
        Objective(ttft=1.0, itl=0.2),
    )
    assert (found.requests, found.failed, found.seconds) == (3, 1, 10.0)
    assert {kind: (each.count, each.example) for kind, each in found.failures.items()} == {"disconnected": (1, "gone")}
    assert (found.output_tokens, found.prompt_tokens) == (16, 30)
    assert found.output_tokens_per_second == found.goodput_tokens == pytest.approx(1.6)
    assert found.total_tokens_per_second == pytest.approx(4.6)
    assert found.goodput_requests == pytest.approx(0.1) and found.met == pytest.approx(0.25)
    assert (found.ttft.p50, found.ttft.p99) == (0.5, 2.0)
    assert found.tpot.p50 == pytest.approx(0.1) and found.tpot.p99 == pytest.approx(2.5)
    assert found.itl.mean == pytest.approx(8.5 / 13) and found.itl.p50 == pytest.approx(0.1)
    assert found.e2e.p99 == pytest.approx(8.0)
    assert found.at_once == pytest.approx((1.0 + 2.5 + 8.0) / 10)
    assert found.decode_tokens_per_second == pytest.approx(10.0)
    assert found.cached_share == pytest.approx(1 / 6)
    assert (found.exact, found.counted, found.short) == (1.0, 1.0, 0)
    assert found.lag.p50 == pytest.approx(0.001) and found.client == pytest.approx(0.05)


def test_what_must_be_known_is_said() -> None:
    odd = outcome(0.0, 1.0, 2.0, 2, prompt=12, counted=False)
    said = report_notes(make_report(measured(odd, outcome(0.0, 0.0, 0.0, 0, "HTTP 500", message="broken")), Objective()))
    assert any("1 failed, HTTP 500: broken" in note for note in said)
    assert any("fewer" in note or "before as many" in note for note in said)
    assert any("by events" in note for note in said)
    assert any("the mean is 12.0" in note for note in said)
    few = report_notes(make_report(measured(outcome(0.0, 1.0, 2.0, 4)), Objective()))
    assert len(few) == 1 and few[0].startswith("1 requests: a percentile needs")
    assert not report_notes(make_report(measured(*[outcome(0.0, 1.0, 2.0, 4)] * 100), Objective()))


def test_an_answer_of_one_token_has_no_tpot() -> None:
    found = make_report(measured(outcome(0.0, 1.0, 1.0, 1), outcome(0.0, 1.0, 2.0, 3)), Objective())
    assert found.tpot.mean == pytest.approx(0.5) and found.prefill_tokens_per_second == pytest.approx(10.0)


def test_nothing_answered_shows_no_time() -> None:
    found = make_report(measured(outcome(0.0, 0.0, 0.0, 0, "timeout")), Objective())
    table = {row[0]: row[1] for row in table_rows([found], objective=True)}
    assert table["TTFT p50"] == "–" and table["requests failed"] == "1"
    assert json.loads(json.dumps(as_dict(found)))["failures"]["timeout"]["count"] == 1
    texts = [format_value(1.5, "s"), format_value(0.0015, "s"), format_value(0.5, "%"), format_value(1234.5, "/s")]
    assert texts == ["1.5 s", "1.5 ms", "50.0%", "1,234/s"]


# ── prompts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def byte_count(text: str) -> int:
    return 1 + len(text)


def word_count(text: str) -> int:
    return 1 + len(text.split())


@pytest.mark.parametrize("count", [byte_count, word_count])
@pytest.mark.parametrize("tokens", [8, 57, 127, 1000])
def test_prompts_have_the_tokens_that_are_asked_for(count: object, tokens: int) -> None:
    async def ask(text: str) -> int:
        return count(text)  # type: ignore[operator,no-any-return]

    prompts = Prompts(asyncio.run(_measure_costs(ask, len(WORDS), "test")), seed=7)
    texts = [prompts.text(Arrival(0.0, tokens, 1), number) for number in range(20)]
    assert {count(text) for text in texts} == {tokens}  # type: ignore[operator]
    assert len(set(texts)) > (18 if tokens > 8 else 1)


def test_shared_beginnings_are_shared_and_differ_from_each_other() -> None:
    prompts = Prompts(TokenCosts(dict.fromkeys(WORDS, 1), 1, 2, "test"), seed=3)
    first, second, other = (prompts.text(Arrival(0.0, 60, 1, prefix, 40), number).split() for number, prefix in ((0, 1), (1, 1), (2, 2)))
    assert first[:39] == second[:39] and first[39:] != second[39:] and first[:39] != other[:39]
    assert first[0] == FIRST_WORD and len(first) == 59


def test_seeds_and_numbers_tell_prompts_apart() -> None:
    costs = TokenCosts(dict.fromkeys(WORDS, 1), 1, 2, "test")
    assert Prompts(costs, 1).text(Arrival(0.0, 60, 1), 5) == Prompts(costs, 1).text(Arrival(0.0, 60, 1), 5)
    assert len({Prompts(costs, seed).text(Arrival(0.0, 60, 1), number) for seed in (1, 2) for number in (1, 2)}) == 4


# ── comparing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_ratio_of_medians_lies_in_its_interval() -> None:
    found = ratio([20.0, 22.0, 21.0, 20.5, 21.5], [10.0, 11.0, 10.5, 10.2, 10.8])
    assert found is not None and found.value == 2.0 and 1.9 < found.low <= 2.0 <= found.high < 2.1
    wide = ratio([20.0, 40.0, 10.0, 30.0, 20.0], [10.0, 11.0, 10.5, 10.2, 10.8])
    assert wide is not None and wide.high - wide.low > 10 * (found.high - found.low)
    assert ratio([1.0], [0.0]) is None and ratio([], []) is None and ratio([1.0], []) is None
    whole = ratio([2.0, 9.0], [1.0])
    assert whole is not None and whole.value == 2.0


def test_a_round_without_an_answer_leaves_no_figure() -> None:
    good = make_report(measured(outcome(0.0, 1.0, 2.0, 4)), Objective())
    bad = make_report(measured(outcome(0.0, 0.0, 0.0, 0, "timeout")), Objective())
    assert round_values(ServerRounds([good, good]), "ttft.p50") == [1.0, 1.0]
    assert round_values(ServerRounds([good, bad]), "ttft.p50") == []


def test_answers_are_compared_by_their_beginning() -> None:
    assert common_prefix("abc", "abc") == (3, 3)
    assert common_prefix("abcd", "abx") == (2, 4)
    assert common_prefix("", "a") == (0, 1)


def test_rounds_of_a_scenario_differ_and_servers_get_the_same() -> None:
    shared = SCENARIOS["shared-prefix"]
    first, again, second = (list(shared.load(number, 5).arrivals) for number in (0, 0, 1))
    assert first == again and {each.prefix for each in first} == {1} and {each.prefix for each in second} == {2}
    mixed = list(SCENARIOS["mixed"].load(0, 5).arrivals)
    assert all(20 <= each.prompt <= 1000 and 10 <= each.output <= 300 for each in mixed) and mixed[-1].time > 1
    assert SCENARIOS["mixed"].context == 1300 and SCENARIOS["mixed"].mean_lengths == (510, 155)
    start, chosen = parse_scenarios("streams-4, streams-1")
    assert not start and [each.name for each in chosen] == ["streams-1", "streams-4"]
    with pytest.raises(ConfigError, match="known: start, streams-1"):
        parse_scenarios("stream-1")


def test_commands_of_servers() -> None:
    ours = parse_spec("new=ridgeline:model.gguf --depth 2", SIZE, {})
    assert ours.name == "new" and ours.command is not None
    assert list(ours.command)[3:5] == ["serve", "model.gguf"] and list(ours.command)[-2:] == ["--depth", "2"]
    other = parse_spec("cmd:sh -c 'serve {port}'", SIZE, {})
    assert other.name == "sh" and other.command is not None and other.url.rpartition(":")[2] in other.command[2]
    assert parse_spec("vllm:org/m", SIZE, {"vllm": "/bin/true"}).command is not None
    assert parse_spec("openvino:dir", SIZE, {"openvino": "/bin/true"}).url.endswith("/v3")
    assert parse_spec("http://127.0.0.1:8000/v1", SIZE, {}).command is None


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("nothing", "KIND:MODEL"),
        ("cmd:serve", "{port}"),
        ("vllm:org/m", "not installed"),
        ("http://", "not the address"),
        ("cmd:'", "quotation"),
    ],
)
def test_wrong_servers_are_refused(text: str, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=cause):
        parse_spec(text, SIZE, {})


def test_servers_that_are_not_here_are_named_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    here = ["http://127.0.0.1:1", "b=http://127.0.0.1:2"]
    specs, not_run = parse_servers([*here, "ollama:gemma3", "tgi:org/m"], [], 2, [])
    assert [spec.url for spec in specs] == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    assert ["ollama" in not_run[0], "text-generation-launcher" in not_run[1]] == [True, True]
    with pytest.raises(ConfigError, match="not installed"):
        parse_servers([here[0], "ollama:gemma3"], [], 2, [])


def test_memory_is_that_of_a_process_and_its_children(tmp_path: Path) -> None:
    for pid, pages, children in ((1, 100, "2 3"), (2, 10, ""), (3, 1, "4")):
        task = tmp_path / str(pid) / "task" / str(pid)
        task.mkdir(parents=True)
        (tmp_path / str(pid) / "statm").write_text(f"999 {pages} 0")
        (task / "children").write_text(children)
    assert resident_bytes(1, tmp_path) == 111 * 4096  # 4 has ended


# ── loads and ceilings ──────────────────────────────────────────────────────────────────────────────────────────────


def asked(**changes: object) -> LoadOptions:
    given: dict[str, object] = {
        "requests": None, "seconds": None, "streams": None, "rate": None, "arrivals": "poisson", "input_len": "20-30", "output_len": "5",
        "shared_prefix": 0, "prefixes": 1, "trace": None, "speed": 1.0, "seed": 1, **changes,
    }  # fmt: skip
    return LoadOptions(**given)  # type: ignore[arg-type]


def test_lists_of_streams_and_rates_are_runs() -> None:
    assert [(each.name, each.streams, each.is_open_loop) for each in make_loads(asked(streams="1,16"))] == [
        ("1 stream", 1, False),
        ("16 streams", 16, False),
    ]
    (slow, fast) = make_loads(asked(rate="2,4", requests=50, streams="8"))
    assert slow.is_open_loop and slow.streams == 8 and list(slow.arrivals)[-1].time > 1.5 * list(fast.arrivals)[-1].time
    (burst,) = make_loads(asked(arrivals="burst", requests=5))
    assert [each.time for each in burst.arrivals] == [0.0] * 5
    (timed,) = make_loads(asked(rate="50", seconds=2.0))
    arrivals = list(timed.arrivals)
    assert 60 < len(arrivals) < 140 and arrivals[-1].time < 2.0 and all(20 <= each.prompt <= 30 for each in arrivals)


def test_traces_are_read_by_the_simulator(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(
        '{"timestamp": 0, "input_length": 20, "output_length": 3}\n{"timestamp": 2000, "input_length": 9, "output_length": 4}\n'
    )
    (load,) = make_loads(asked(trace=file, speed=2.0))
    assert load.is_open_loop and [(each.time, each.prompt, each.output) for each in load.arrivals] == [(0.0, 20, 3), (1.0, 9, 4)]


@pytest.mark.parametrize(
    "changes",
    [{"streams": "0"}, {"streams": "x"}, {"streams": "1,2", "rate": "1"}, {"rate": "0"}, {"input_len": "9-3"}, {"input_len": "0"}],
)
def test_wrong_loads_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        make_loads(asked(**changes))


def test_ceilings_are_those_of_memory_and_of_arithmetic(tmp_path: Path) -> None:
    file = tmp_path / "roofline.json"
    found = {
        "dram_bytes_per_second": {"one": 5e9, "all": 10e9},
        "f32_flops_per_second": {"one": 1e11, "all": 2e11},
        "int8_ops_per_second": None,
    }
    file.write_text(json.dumps(found))
    shape = describe_model("llama-3-8b", model_stores())
    one, every = (ceilings(SCENARIOS["streams-1"], shape, read_roofline(file, threads, shape)) for threads in (1, 2))
    # 16 GB of weights, less an embedding of 1 GB that is looked up, at 10 GB/s; 2 · 7.5 · 10⁹ operations a token at 2 · 10¹¹.
    assert every["decode_tokens_per_second"] == pytest.approx(10 / 15.0, rel=0.02)
    assert every["prefill_tokens_per_second"] == pytest.approx(2e11 / 14e9, rel=0.05)
    assert one["decode_tokens_per_second"] == pytest.approx(every["decode_tokens_per_second"] / 2)
    assert every["output_tokens_per_second"] < every["decode_tokens_per_second"]
    file.write_text("[]")
    with pytest.raises(ConfigError, match="bench roofline"):
        read_roofline(file, 1, shape)


def test_figures_have_a_row_or_a_reason() -> None:
    from ridgeline.bench.report import METRIC_LABELS

    named = {key.partition(".")[0] for key in METRIC_LABELS}
    assert set(LoadReport.__dataclass_fields__) - named == {"failures", "curves", "short", "counted", "disagreement"}  # three are notes
