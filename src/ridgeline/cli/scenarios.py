"""Scenarios of the simulator from named settings: one table for `sim`, `whatif` and `--set`.

Owns the names, their bounds and their defaults. Model facts come from a header or a config.json; nothing is downloaded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from ridgeline.config.env import model_stores
from ridgeline.config.values import parse_size
from ridgeline.core.step_time import StepSeconds
from ridgeline.errors import ConfigError, ModelFormatError, ModelNotFoundError, nearest
from ridgeline.facts.files.json_file import read_object
from ridgeline.facts.headers.read import describe_model
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.arguments import THIS_MACHINE, PlanOptions, deployment_of, parse_objective
from ridgeline.planning.heads import HEAD_KINDS, PlannedHeads
from ridgeline.planning.served import served_settings
from ridgeline.sim.fleet.durations import ConstantDurations, Durations, ObservedStep, fit_constant, prompt_factors
from ridgeline.sim.fleet.fleet import Failures, Outage, Scaling
from ridgeline.sim.fleet.scenario import Knobs, Scenario
from ridgeline.sim.fleet.service import SETTLE_SECONDS, WINDOWS_PER_DAY, DaySample
from ridgeline.sim.fleet.traffic import ClosedLoop, Traffic, parse_arrival_process, parse_length, read_steps, read_trace


@dataclass(frozen=True, slots=True)
class SettingSpec:
    """A setting: parser of its text, and default."""

    read: Callable[[str, str], Any]
    default: Any


def _whole(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        if not text.strip().lstrip("-").isdecimal() or len(text) > 20 or not low <= int(text) <= high:
            raise ConfigError(
                f"{name}={text[:40]} is not understood; a whole number of {low} … {high} was expected",
                fix={_flag_of(name): _nearest_bound(text, low, high)},
            )
        return int(text)

    return read


def _tokens(low: int, high: int) -> Callable[[str, str], int]:
    whole = _whole(low, high)

    def read(name: str, text: str) -> int:
        is_plain = text.strip().lstrip("-").isdecimal()
        return whole(name, text if is_plain else str(parse_size(text, _flag_of(name), unit="tokens")))

    return read


def _number(low: float, high: float) -> Callable[[str, str], float]:
    def read(name: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise ConfigError(
                f"{name}={text[:40]} is not understood; a number of {low:g} … {high:g} was expected",
                fix={_flag_of(name): _nearest_bound(text, low, high)},
            )
        return value

    return read


def _text(name: str, text: str) -> str:
    return text


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(f"{name}={text[:40]} is not understood; write true or false", fix={_flag_of(name): None})
    return text == "true"


def _flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _nearest_bound(text: str, low: float, high: float) -> str | None:
    """The bound that a number out of range is nearest to; None for what is no number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return f"{low if value < low else high:.12g}" if not low <= value <= high and isfinite(value) else None


MAX_TOKENS: Final = 1 << 24
SETTINGS: Final[Mapping[str, SettingSpec]] = {
    "device": SettingSpec(_text, "h100-sxm"),  # device of the planner's table
    "dtype": SettingSpec(_text, None),  # weight format
    "kv_dtype": SettingSpec(_text, None),  # format of the KV cache
    "context": SettingSpec(_tokens(2, 1 << 27), None),  # tokens of a sequence at most
    "tensor_parallel_size": SettingSpec(_whole(1, 1024), 1),  # devices per matrix
    "pipeline_parallel_size": SettingSpec(_whole(1, 1024), 1),  # stages of layers
    "memory_utilization": SettingSpec(_number(0.1, 1.0), 0.9),  # share of a device's memory that may be used
    "max_num_seqs": SettingSpec(_whole(1, 4096), 256),  # sequences at once
    "max_num_batched_tokens": SettingSpec(_tokens(1, 1 << 20), 2048),  # tokens of a step
    "step_ms": SettingSpec(_whole(1, 60_000), 60),  # milliseconds that a step with decode rows may take
    "scheduling_policy": SettingSpec(_text, "fcfs"),  # order of requests
    "enable_prefix_caching": SettingSpec(_flag, True),  # reuse of shared prefixes
    "max_waiting": SettingSpec(_whole(0, 1 << 20), 1 << 20),  # requests that may wait
    "depth": SettingSpec(_whole(1, 4), 1),  # steps in flight
    "kv_blocks": SettingSpec(_whole(1, MAX_TOKENS), None),  # KV cache blocks instead of as many as fit
    "swap_space": SettingSpec(_number(0, 1 << 14), 0.0),  # GiB of host memory for evicted KV blocks
    "num_speculative_tokens": SettingSpec(_whole(0, 8), 0),  # most drafted tokens per sequence and step
    "acceptance": SettingSpec(_number(0, 1), 0.6),  # probability that a drafted token is right
    "draft_model": SettingSpec(_text, None),  # MODEL that drafts, or heads: medusa, eagle, eagle3, mtp; None: drafts cost nothing
    "replicas": SettingSpec(_whole(1, 1024), 1),  # servers
    "decode_replicas": SettingSpec(_whole(0, 1024), 0),  # servers that decode what `replicas` prefill; 0: all do both
    "routing": SettingSpec(_text, "least-requests"),  # how requests are spread
    "autoscale": SettingSpec(_text, None),  # MIN:MAX replicas, by queue depth
    "cold_start": SettingSpec(_number(0, 86_400), 120.0),  # seconds until a new replica serves
    "mtbf": SettingSpec(_number(1, 1e9), None),  # mean seconds between failures of a replica
    "outage": SettingSpec(_text, None),  # AT:SECONDS:SHARE: a zone with that share of the replicas fails at once
    "arrivals": SettingSpec(_text, "poisson"),  # poisson, bursty, diurnal, or closed
    "rate": SettingSpec(_number(1e-6, 1e6), 1.0),  # requests per second
    "users": SettingSpec(_whole(1, 100_000), 16),  # users of a closed loop
    "think": SettingSpec(_number(0, 1e6), 0.0),  # mean seconds that a user thinks
    "prompt": SettingSpec(_text, "lognormal:500"),  # prompt tokens
    "output": SettingSpec(_text, "lognormal:150"),  # output tokens
    "prefixes": SettingSpec(_whole(0, 1 << 20), 0),  # different shared prefixes
    "shared": SettingSpec(_whole(0, MAX_TOKENS), 0),  # tokens of a shared prefix
    "background": SettingSpec(_number(0, 1), 0.0),  # share of requests without an objective, last under scheduling_policy=priority
    "patience": SettingSpec(_number(1e-3, 1e6), None),  # seconds after which a client aborts a request
    "requests": SettingSpec(_whole(1, 100_000_000), 2000),  # requests to simulate
    "sample": SettingSpec(_number(1e-4, 1.0), None),  # share of a diurnal day to simulate, in windows of all its hours
    "windows": SettingSpec(_whole(1, 1440), WINDOWS_PER_DAY),  # windows of a sample, one in each so many equal parts of the day
    "settle": SettingSpec(_number(0, 3600), SETTLE_SECONDS),  # seconds of traffic before and after each of them
    "speed": SettingSpec(_number(1e-3, 1e3), 1.0),  # a trace played so many times as fast
    "step_time": SettingSpec(_text, "roofline"),  # roofline, constant:STEP,TOKEN,CACHED in seconds, or the path of a step log
    "slo": SettingSpec(_text, None),  # objective, for instance ttft=500ms,itl=50ms
}


def parse_changes(changes: list[str], flag: str = "--set") -> dict[str, str]:
    """Settings of `name=value` texts, each name known and once; "-" in a name is "_". Raises ConfigError."""
    found: dict[str, str] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        name = name.replace("-", "_")
        if name in found:
            raise ConfigError(f"{flag} {name} is given twice; give it once", fix={change: None})
        if not equals or name not in SETTINGS:
            near = nearest(name, SETTINGS, 0.75) if equals else None
            raise ConfigError(
                f"{flag} {change[:60]!r} is not understood; write name=value with one of: {', '.join(SETTINGS)}",
                fix={change: f"{near}={value}" if near else None},
            )
        found[name] = value
    return found


STEPS_FILE, WHAT_FILE = "steps.jsonl", "incident.json"
"""Files of an incident of the flight recorder."""


def incident_settings(trace: Path) -> tuple[str | None, dict[str, str]]:
    """(model, settings of today) of a server that recorded the incident in the folder `trace`: its steps take what they took. Of other
    traces (None, {}). Raises ConfigError for a damaged file."""
    told = _read_incident(trace) if trace.is_dir() else {}
    settings, model = told.get("settings"), told.get("model")
    if not isinstance(settings, dict) or not isinstance(model, str):
        return None, {}
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items() if name in SETTINGS}
    return model, texts | {"step_time": str(trace / STEPS_FILE)}


def _read_incident(folder: Path) -> dict[str, Any]:
    try:
        return read_object(folder / WHAT_FILE)
    except ModelNotFoundError:
        return {}
    except ModelFormatError as error:
        raise ConfigError(f"{str(folder)!r:.200} is no incident: {error}") from None


def make_scenario(model: str, settings: Mapping[str, str], trace: Path | None) -> Scenario:
    """The scenario of `model` with the settings; a trace replaces generated traffic. Raises ConfigError."""
    value = {name: setting.read(name, settings[name]) if name in settings else setting.default for name, setting in SETTINGS.items()}
    facts = describe_model(model, model_stores())
    if value["device"].lower() == THIS_MACHINE:
        own = served_settings(facts, {name: value[name] for name in settings if name in value})
        value |= {name: found for name, found in own.items() if name not in settings}
    deployment = deployment_of(
        facts,
        PlanOptions(
            device=value["device"],
            count=value["tensor_parallel_size"] * value["pipeline_parallel_size"],
            dtype=value["dtype"],
            kv_dtype=value["kv_dtype"],
            context=value["context"],
            tensor=value["tensor_parallel_size"],
            pipeline=value["pipeline_parallel_size"],
            utilisation=value["memory_utilization"],
            chunk=value["max_num_batched_tokens"],
        ),
        _draft(value),
    )
    load = tuple(read_trace(trace, value["speed"])) if trace is not None else _load(value, deployment.context)
    sample = _sample(value, settings, trace)
    durations, factors = _durations(value["step_time"])
    knobs = Knobs(**{name: value[name] for name in Knobs.__dataclass_fields__})
    return Scenario(
        deployment=deployment,
        knobs=knobs,
        load=load,
        requests=_requests(value, settings, load, sample),
        replicas=value["replicas"],
        decode_replicas=value["decode_replicas"],
        routing=value["routing"],
        scaling=_scaling(value["autoscale"], value["cold_start"]),
        failures=None if value["mtbf"] is None else Failures(value["mtbf"]),
        outage=_outage(value["outage"]),
        durations=durations,
        factors=factors,
        objective=parse_objective(value["slo"]),
        patience=value["patience"],
        sample=sample,
    )


def _draft(value: Mapping[str, Any]) -> ModelFacts | str | None:
    """The drafter of `draft_model`: one of `HEAD_KINDS`, or a model; None for one that takes no time. Raises ConfigError."""
    name = value["draft_model"]
    if name is None or name in HEAD_KINDS:
        return name  # type: ignore[no-any-return]
    return describe_model(name, model_stores())


def describe_scenario(scenario: Scenario, settings: Mapping[str, str], trace: Path | None) -> list[str]:
    """A description of the simulation, in lines: model and devices, traffic, settings of the engine, times of steps."""
    deployment, knobs = scenario.deployment, scenario.knobs
    value = {name: settings.get(name, setting.default) for name, setting in SETTINGS.items()}
    if isinstance(scenario.load, tuple):
        arrivals = scenario.load[: scenario.requests]
        span = arrivals[-1].time - arrivals[0].time
        prompt, output = (fmean(lengths) for lengths in zip(*((each.prompt, each.output) for each in arrivals), strict=True))
        rate = f" ({len(arrivals) / span:.3g}/s)" if span else ""
        traffic = f"{trace.name if trace else 'a trace'}: {len(arrivals):,} requests in {span:,.3g} s{rate}"
        traffic += f", mean prompt {prompt:,.0f} and output {output:,.0f} tokens"
    else:
        if isinstance(scenario.load, ClosedLoop):
            arrivals_text = f"{scenario.load.users:,} users, each waits for its answer, then thinks {scenario.load.think:g} s"
        else:
            arrivals_text = f"{value['arrivals']} arrivals at {float(value['rate']):g} requests/s"
        share = f", {scenario.load.prefixes} shared prefixes of {scenario.load.shared} tokens" if scenario.load.prefixes else ""
        traffic = f"{scenario.requests:,} requests: {arrivals_text}; prompt {value['prompt']}, output {value['output']} tokens{share}"
    devices = f"{deployment.layout.ranks} × {deployment.device.name}"
    decoders = f" and {scenario.decode_replicas} that decode" if scenario.decode_replicas else ""
    servers = f"{scenario.replicas} replica{'s' * (scenario.replicas > 1)}{decoders} of {devices}"
    objective = [f"objective: {value['slo']}"] if value["slo"] else []
    drafter = deployment.draft.one.name if isinstance(deployment.draft, PlannedHeads) else deployment.draft and deployment.draft.name
    drafts = [f"drafted by {drafter}, {knobs.num_speculative_tokens} ids at most, {knobs.acceptance:.0%} right"] if drafter else []
    return [
        f"{deployment.model.name}, weights {deployment.dtype or deployment.model.dtype}, KV {deployment.kv_dtype}, on {servers}",
        traffic,
        f"at most {knobs.max_num_seqs} sequences at once, {knobs.max_num_batched_tokens:,} tokens per step, {deployment.context:,} per "
        f"sequence; policy {knobs.scheduling_policy}, step times: {value['step_time']}",
        *drafts,
        *objective,
    ]


def scenario_at_rate(model: str, settings: Mapping[str, str], trace: Path | None) -> Callable[[float], Scenario]:
    """Function from an arrival rate to the scenario; a trace is replayed up to 1,000 times faster or slower. Raises ConfigError."""
    if settings.get("arrivals") == "closed" and trace is None:
        raise ConfigError(
            "a knee is searched by arrival rate, and a closed loop has none; give --rate instead of --users", fix={"--knee": None}
        )
    if trace is None:
        return lambda rate: make_scenario(model, {**settings, "rate": f"{rate:g}"}, None)
    arrivals = read_trace(trace)
    if not arrivals[-1].time:
        raise ConfigError(f"all requests of {trace.name} come at once, so it has no rate; give a trace with different times")
    own = len(arrivals) / arrivals[-1].time
    return lambda rate: make_scenario(model, {**settings, "speed": f"{min(1e3, max(1e-3, rate / own)):g}"}, trace)


def _load(value: Mapping[str, Any], max_length: int) -> Traffic | ClosedLoop:
    prompt, output = parse_length("prompt", value["prompt"]), parse_length("output", value["output"])
    shares = {name: value[name] for name in ("prefixes", "shared", "background")}
    if value["arrivals"] == "closed":
        return ClosedLoop(value["users"], value["think"], prompt, output, max_length, **shares)
    return Traffic(parse_arrival_process(value["arrivals"], value["rate"]), prompt, output, max_length, **shares)


def _sample(value: Mapping[str, Any], settings: Mapping[str, str], trace: Path | None) -> DaySample | None:
    if value["sample"] is None:
        return None
    if trace is not None or value["arrivals"] != "diurnal" or "requests" in settings:
        raise ConfigError(
            "sample takes a share of a diurnal day; set arrivals=diurnal and a rate, and leave requests and traces out",
            fix={"--sample": None},
        )
    if any(value[name] is not None for name in ("autoscale", "mtbf", "outage")):
        raise ConfigError(
            "sample begins every window with a whole fleet; leave autoscale, mtbf and outage out, or simulate the whole day",
            fix={"--sample": None},
        )
    return DaySample(value["sample"], parts=value["windows"], settle=value["settle"])


def _requests(value: Mapping[str, Any], settings: Mapping[str, str], load: object, sample: DaySample | None) -> int:
    asked: int = value["requests"]
    rate: float = value["rate"]
    if sample is not None:
        return round(rate * sample.seconds)
    return len(load) if isinstance(load, tuple) and "requests" not in settings else asked


def _scaling(text: str | None, cold_start: float) -> Scaling | None:
    if text is None:
        return None
    minimum, _, maximum = text.partition(":")
    low, high = _whole(1, 1024)("autoscale", minimum), _whole(1, 1024)("autoscale", maximum or minimum)
    if low > high:
        raise ConfigError(f"autoscale={text} has its minimum above its maximum; write {high}:{low}", fix={"--autoscale": f"{high}:{low}"})
    return Scaling(low, high, cold_start=cold_start)


def _outage(text: str | None) -> Outage | None:
    """The outage of AT:SECONDS:SHARE; None for none. Raises ConfigError."""
    if text is None:
        return None
    parts = text.split(":")
    if len(parts) != 3:
        raise ConfigError(
            f"outage={text[:60]} is not understood; write AT:SECONDS:SHARE, for instance outage=60:120:0.33", fix={"--outage": None}
        )
    bounds = ((0, 1e9), (0, 1e9), (0, 1))
    return Outage(*[_number(*each)("outage", part) for part, each in zip(parts, bounds, strict=True)])


def _durations(text: str) -> tuple[Durations | None, tuple[float, ...]]:
    """Durations from `step_time`, and how much those with prompts vary; None for the roofline, which needs the deployment. Raises
    ConfigError."""
    if text == "roofline":
        return None, ()
    if text.startswith("constant:"):
        parts = text.removeprefix("constant:").split(",")
        if len(parts) > 3:
            raise ConfigError(
                f"step_time={text[:60]} has {len(parts)} numbers; write constant:STEP,TOKEN,CACHED in seconds", fix={"--step-time": None}
            )
        return ConstantDurations(*[_number(0, 3600)("step_time", part) for part in parts]), ()
    path = Path(text)
    start = _read_incident(path.parent).get("step_seconds") if path.name == STEPS_FILE else None
    try:
        known = (
            None if start is None else StepSeconds(**{name: _number(0, 3600)("step_seconds", str(each)) for name, each in start.items()})
        )
    except (AttributeError, TypeError):
        raise ConfigError(
            f"{path.parent / WHAT_FILE}: step_seconds is {start!r:.80}; an object of fixed, row, token was expected"
        ) from None
    steps = [ObservedStep(*each) for each in read_steps(path)]
    found = fit_constant(steps, known)
    return found, prompt_factors(steps, found)
