"""Parser of the options of `ridgeline plan` to a deployment. Every number is bounded; errors say the cause, the number and the fix."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, isfinite

from ridgeline.config.env import cache_directory
from ridgeline.config.values import GIB
from ridgeline.errors import ConfigError, nearest
from ridgeline.facts.hardware.devices import DEVICE_NAMES, DEVICES, GB, TERA, Device, Price, known_device
from ridgeline.facts.hardware.this_machine import this_machine
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.corrections import corrected, default_runner, read_correction
from ridgeline.planning.deployment import MAX_DEVICES, Deployment, Layout, Workload, automatic_layout, weight_classes
from ridgeline.planning.formats import KV_BITS, WEIGHT_FORMATS
from ridgeline.planning.heads import plan_heads
from ridgeline.planning.objectives import Objective

MAX_USERS = 1_000_000
MAX_TOKENS = 1 << 27
MAX_GIB = 1 << 20
DEFAULT_CONTEXT = 4_096
THIS_MACHINE = "this"
"""Name of the machine that the planner runs on."""
_TIMES = {"ttft", "itl"}
_LOAD = {"in": (1, MAX_TOKENS), "out": (1, MAX_TOKENS), "prefix": (0, 0.99), "burst": (1, 1_000)}


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of a plan; None means the default. Times are seconds, `memory_gb` and `bandwidth_gb` are 10⁹ bytes (per second)."""

    device: str
    count: int = 1
    dtype: str | None = None
    kv_dtype: str | None = None
    context: int | None = None
    users: int | None = None
    workload: str | None = None
    tensor: int | None = None
    pipeline: int | None = None
    expert: int | None = None
    utilisation: float = 0.90
    chunk: int = 2048
    memory_gb: float | None = None
    bandwidth_gb: float | None = None
    tflops: float | None = None
    price: float | None = None
    acceptance: float | None = None
    adapters: int = 0
    adapter_rank: int = 64
    expert_memory: float | None = None


def deployment_of(model: ModelFacts, options: PlanOptions, draft: ModelFacts | str | None = None) -> Deployment:
    """Deployment of a model with these options, and of a draft model beside it, or of heads of a kind. Raises ConfigError with the number
    and the fix."""
    _bounded("--count", options.count, 1, MAX_DEVICES)
    users = int(_bounded("--users", _or_one(options.users), 1, MAX_USERS))
    _bounded("--memory-utilization", options.utilisation, 0.1, 1.0)
    _bounded("--max-num-batched-tokens", options.chunk, 1, 1 << 20)
    load = parse_workload(options.workload)
    context = _context(model, options.context, load)
    found = Deployment(
        model=model,
        device=device_of(options),
        layout=_layout(model, options),
        dtype=_choice("--dtype", options.dtype, WEIGHT_FORMATS) if options.dtype not in (None, "auto") else None,
        kv_dtype=_choice("--kv-dtype", options.kv_dtype, KV_BITS) if options.kv_dtype else ("f32" if model.dtype == "f32" else "f16"),
        context=context,
        users=users,
        workload=_load_within(context, load),
        utilisation=options.utilisation,
        chunk=options.chunk,
        draft=None if isinstance(draft, str) else draft,
        acceptance=None if options.acceptance is None else _bounded("--acceptance", options.acceptance, 0.0, 1.0),
        adapters=int(_bounded("--max-loras", options.adapters, 0, 256)),
        adapter_rank=int(_bounded("--max-lora-rank", options.adapter_rank, 1, 256)),
    )
    if options.expert_memory is not None:
        found = replace(found, expert_memory=_expert_memory(found, options.expert_memory))
    if isinstance(draft, str):
        found = replace(found, draft=plan_heads(model, draft, found.dtype, native=not found.device.is_gpu))
    if options.device.lower() != THIS_MACHINE or options.bandwidth_gb is not None or options.tflops is not None:
        return found
    correction = read_correction(cache_directory(), found, default_runner(found.device))
    return found if correction is None else corrected(found, correction)


def _expert_memory(deployment: Deployment, gib: float) -> int:
    """Bytes for experts. Raises ConfigError where there are none, where they cannot be read from disk, and below one layer's."""
    model = deployment.model
    if model.experts is None or deployment.device.is_gpu:
        reason = f"{deployment.device.name} keeps all of them" if model.experts else f"{model.name:.60} has none"
        raise ConfigError(
            f"--expert-memory is for experts that a CPU reads from disk, and {reason}; leave it out", fix={"--expert-memory": None}
        )
    layer = weight_classes(deployment)["experts"] / model.experts.layers
    return int(_bounded("--expert-memory", gib, ceil(1000 * layer / GIB) / 1000, MAX_GIB) * GIB)


def device_of(options: PlanOptions) -> Device:
    """Device by name, with the numbers that the options override."""
    name = options.device.lower()
    device = this_machine(cache_directory()) if name == THIS_MACHINE else known_device(name)
    if device is None:
        raise ConfigError(
            f"--device {options.device!r:.60} is not known; known: {', '.join((THIS_MACHINE, *DEVICES))}; "
            "or change one by --bandwidth and the like",
            fix={"--device": nearest(options.device, (THIS_MACHINE, *DEVICE_NAMES))},
        )
    if options.memory_gb is not None:
        device = replace(device, memory_bytes=int(_bounded("--memory", options.memory_gb, 0.1, 1e5) * GB))
    if options.bandwidth_gb is not None:
        device = replace(device, bytes_per_second=_bounded("--bandwidth", options.bandwidth_gb, 0.1, 1e6) * GB)
    if options.tflops is not None:
        device = replace(device, flops_per_second={"f32": _bounded("--tflops", options.tflops, 1e-3, 1e6) * TERA})
    if options.price is not None:
        device = replace(device, price=Price(_bounded("--price-per-hour", options.price, 1e-6, 1e6), "given"))
    return device


def api_price_of(value: float | None) -> float | None:
    """Dollars per million tokens. Raises ConfigError out of bounds."""
    return None if value is None else _bounded("--api-price", value, 1e-6, 1e6)


def parse_objective(text: str | None) -> Objective:
    """Parses `ttft=500ms,itl=50ms`. A time without a unit is an error, since both units are usual."""
    times = {}
    for key, value in _pairs("--slo", text, _TIMES).items():
        scale = 1e-3 if value.endswith("ms") else 1.0
        digits = value.removesuffix("ms") if value.endswith("ms") else value.removesuffix("s")
        if digits == value:
            fixed = ",".join(part + "ms" if part.strip() == f"{key}={value}" else part for part in (text or "").split(","))
            raise ConfigError(f"--slo {key}={value} has no unit; write {key}={value}ms or {key}={value}s", fix={"--slo": fixed})
        times[key] = _bounded(f"--slo {key}", _number(f"--slo {key}", digits) * scale, 1e-6, 86_400.0)
    return Objective(times.get("ttft"), times.get("itl"))


def parse_workload(text: str | None) -> Mapping[str, float]:
    """Parses `in=2000,out=500,prefix=0.5,burst=3`: prompt and output tokens, cached share of the prompt, peak over mean arrivals."""
    found = {}
    for key, value in _pairs("--workload", text, set(_LOAD)).items():
        low, high = _LOAD[key]
        found[key] = _bounded(f"--workload {key}", _number(f"--workload {key}", value), low, high)
    return found


def _context(model: ModelFacts, asked: int | None, load: Mapping[str, float]) -> int:
    context = asked if asked is not None else int(load["in"] + load["out"]) if {"in", "out"} <= load.keys() else None
    if context is None:
        return min(DEFAULT_CONTEXT, model.context)
    if not 2 <= context <= model.context:
        raise ConfigError(
            f"a context of {context} tokens is outside 2 … {model.context}, what {model.name} was trained for; set --context",
            fix={"--workload": None} if asked is None else {"--context": str(max(2, min(context, model.context)))},
        )
    return context


def _load_within(context: int, load: Mapping[str, float]) -> Workload:
    """The workload; by default an eighth of the context is output and the rest prompt."""
    output = int(load.get("out", max(1, context // 8 if "in" not in load else context - load["in"])))
    prompt = int(load.get("in", context - output))
    if prompt < 1 or output < 1 or prompt + output > context:
        needed = max(2, prompt + output)
        raise ConfigError(
            f"{prompt} tokens in and {output} out do not fit a context of {context}; set --context {needed}", fix={"--context": str(needed)}
        )
    return Workload(prompt, output, load.get("prefix", 0.0), load.get("burst", 1.0))


def _layout(model: ModelFacts, options: PlanOptions) -> Layout:
    if options.tensor is None and options.pipeline is None and options.expert is None:
        return automatic_layout(model, options.count)
    tensor = int(_bounded("--tensor-parallel-size", _or_one(options.tensor), 1, MAX_DEVICES))
    pipeline = int(_bounded("--pipeline-parallel-size", _or_one(options.pipeline), 1, model.layers))
    expert = int(_bounded("--expert-parallel-size", _or_one(options.expert), 1, MAX_DEVICES))
    routed = model.experts.routed if model.experts else 1
    if routed % expert:
        have = f"{routed} routed experts" if model.experts else "no experts"
        widths = [str(width) for width in range(1, 65) if routed % width == 0]
        raise ConfigError(
            f"--expert-parallel-size {expert}: {model.name} has {have}; take one of {', '.join(widths)}",
            fix={"--expert-parallel-size": None},
        )
    if model.heads % tensor:
        widths = [str(width) for width in range(1, 65) if model.heads % width == 0]
        raise ConfigError(
            f"--tensor-parallel-size {tensor} does not divide {model.heads} heads; take one of {', '.join(widths)}",
            fix={"--tensor-parallel-size": next(width for width in reversed(widths) if int(width) < tensor)},
        )
    ranks = tensor * pipeline * expert
    if options.count % ranks:
        split = f"{tensor} × {pipeline}" + (f" × {expert}" if expert > 1 else "")
        raise ConfigError(
            f"--count {options.count} is not a multiple of {split} ranks; set --count {ranks} or a multiple of it",
            fix={"--count": str(ceil(options.count / ranks) * ranks)},
        )
    return Layout(tensor, pipeline, expert, replicas=options.count // ranks)


def _or_one(value: int | None) -> int:
    return 1 if value is None else value


def _pairs(flag: str, text: str | None, known: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in (text or "").split(","):
        if not part.strip():
            continue
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in known or key in found:
            raise ConfigError(
                f"{flag} {part.strip()!r:.60} is not understood; write each of {', '.join(sorted(known))} once, as key=value",
                fix={flag: ",".join(each for each in (text or "").split(",") if each != part) or None},
            )
        found[key] = value
    return found


def _number(flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{flag}={text!r:.40} is not a number", fix={flag.partition(" ")[0]: None}) from None


def _bounded(flag: str, value: float, low: float, high: float) -> float:
    if not isfinite(value) or not low <= value <= high:
        fix = None if " " in flag or not isfinite(value) else f"{max(low, min(high, value)):.12g}"
        raise ConfigError(f"{flag} is {value:g}, outside {low:g} … {high:g}", fix={flag.partition(" ")[0]: fix})
    return value


def _choice(flag: str, value: str | None, known: Mapping[str, object]) -> str:
    name = (value or "").lower()
    if name not in known:
        raise ConfigError(f"{flag} {value!r:.40} is not known; known: {', '.join(known)}", fix={flag: nearest(name, known)})
    return name
