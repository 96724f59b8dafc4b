"""AttentionBackend by packages that need not be there, over stand-ins of their signatures: the reference's values, who is chosen, who
refuses."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import attention_packages
import numpy as np
import pytest
import torch
from paged import stored
from small import SIZE, DeviceDriver, device, small
from tensors import DEVICE, error, numbers, on_device, poisoned
from tiny import write_tiny

from ridgeline.compute.cuda import backend, flash_attention, flashinfer
from ridgeline.compute.cuda.attention import TRITON, AttentionBackend, AttentionCase, BackendSizes, open_attention
from ridgeline.compute.cuda.buckets import Buckets
from ridgeline.compute.cuda.device import DTYPES
from ridgeline.compute.cuda.step import NO_SAMPLING, StepBuffers
from ridgeline.compute.dummy import dummy_step, even_counts
from ridgeline.compute.graph import TOKENS, Handle, Op, OpList, StepInputs
from ridgeline.compute.ops.attention import attention, paged_sample
from ridgeline.compute.ops.definition import Sample, floats
from ridgeline.compute.runner import relative_error
from ridgeline.compute.runtime import worker
from ridgeline.config.groups import EngineConfig
from ridgeline.config.runner import ATTENTION_BACKENDS, resolve_runner
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.errors import ConfigError

NAMES = ("flash-attention", "flashinfer")
CASE = AttentionCase(capability=(9, 0), dtype="bf16", kv_dtype="bf16", head_dim=64, kv_heads=2, group=2, invariant=False)
DECODE = [(700, 1), (0, 1), (15, 1), (16, 1), (255, 1)]
MIXED = [(60, 37), (0, 65), (130, 1), (17, 3)]


@pytest.fixture(autouse=True)
def _packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are installed, with workspaces that a test has room for."""
    monkeypatch.setitem(sys.modules, flash_attention.PACKAGE, _module(attention_packages.FlashAttention3))
    monkeypatch.setitem(sys.modules, flashinfer.PACKAGE, attention_packages)
    monkeypatch.setattr(flashinfer, "WORKSPACE_BYTES", 1 << 12)
    monkeypatch.setattr(flashinfer, "PLAN_BYTES", 1 << 12)


def _module(names: type) -> ModuleType:
    module = ModuleType(flash_attention.PACKAGE)
    vars(module).update({name: getattr(names, name) for name in vars(names) if not name.startswith("_")})
    return module


def with_heads(sample: Sample, case: AttentionCase) -> dict[str, Any]:
    """A sample's rows and blocks with the heads of a case."""
    slots, width = len(sample.arguments["keys"]), case.kv_heads * case.group * case.head_dim
    own = {name: floats(seed, slots, case.kv_heads, case.head_dim) for name, seed in (("keys", 2), ("values", 3))}
    own |= {"q": floats(1, len(sample.arguments["q"]), width), "head_dim": case.head_dim, "scale": case.head_dim**-0.5}
    return {**sample.arguments, **own}


class Bound:
    """One attention of one layer, bound to the buckets of steps as a runner binds it."""

    def __init__(self, name: str, case: AttentionCase, arguments: dict[str, Any]) -> None:
        self.case, self.arguments = case, arguments
        attributes = {key: arguments[key] for key in ("head_dim", "scale", "window", "softcap")}
        self.op = Op("attention", ("q",), ("out",), {**attributes, "layer": 0})
        self.cache = stored(arguments["keys"], arguments["values"], arguments["block_tokens"], case.kv_dtype)
        self.shape = KVShape((KVGroup("full", (0,), 0),), arguments["block_tokens"], len(self.cache.pool[0, 0]) - 1, b"")
        self.buckets = Buckets(tokens=128, rows=8, positions=1024, block_tokens=arguments["block_tokens"])
        width = Handle("q", TOKENS, len(arguments["q"][0]))
        self.backend: AttentionBackend = open_attention(name, case, backend.ATTENTION_BACKENDS)
        oplist = OpList("step", (self.op,), {"q": width, "out": width}, {}, {})
        self.reserved = self.backend.reserve(device(), BackendSizes(oplist, self.shape, self.buckets))
        self.buffers = StepBuffers(device(), 1, self.buckets.largest, 2, dummy_row=8)
        self.bucket = self.buckets.of(np.diff(arguments["cu_q"]).tolist(), arguments["tables"].shape[1])
        dtype = DTYPES[case.dtype]
        self.q, self.out = (poisoned(self.bucket.tokens, len(arguments["q"][0]), dtype=dtype) for _ in range(2))
        inputs = self.buffers.device_views(self.bucket)
        binding = SimpleNamespace(
            inputs=inputs,
            value=lambda name: self.q if name == "q" else self.out,
            layer=lambda op: (0, self.cache.layer(0)),
            plan=SimpleNamespace(scratch=poisoned(1 << 20), invariant=case.invariant),
        )
        counts = even_counts(self.bucket.tokens, self.bucket.rows if self.bucket.is_decode else 1)
        self.send(dummy_step(counts, groups=1, block_tokens=arguments["block_tokens"]))
        self.run = self.backend.bind(binding, self.op)  # type: ignore[arg-type]

    def send(self, inputs: StepInputs) -> None:
        """A step on its way, as `CudaRunner` sends it."""
        self.backend.prepare(self.bucket, self.buffers.send(self.bucket, inputs, NO_SAMPLING))

    def error(self) -> float:
        """Of the arguments' step, against the reference over what cache and queries hold once rounded."""
        a = self.arguments
        row = np.repeat(np.arange(len(a["kv_len"])), np.diff(a["cu_q"])).astype(np.int32)
        behind = a["cu_q"][1:][row] - np.arange(len(row))
        slots, nothing = np.zeros(len(row), np.int64), np.zeros(len(row), np.int32)
        at = (a["kv_len"][row] - behind).astype(np.int32)
        self.q.zero_()[: len(row)] = on_device(a["q"], self.q.dtype)
        self.out.fill_(torch.nan)
        select = a["cu_q"][1:] - 1
        self.send(StepInputs(nothing, at[None], row, a["cu_q"], a["kv_len"], (a["tables"],), (slots,), select))
        self.run()
        keys, values = (x.cpu().numpy() for x in self.cache.read(0, torch.arange(len(a["keys"]), device=DEVICE)))
        theirs = attention.reference(**{**a, "q": numbers(self.q[: len(row)]), "keys": keys, "values": values})
        assert isinstance(theirs, np.ndarray)
        return error(self.out[: len(row)], theirs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("rows", "window", "softcap"), [(DECODE, 0, 0.0), (DECODE, 70, 2.0), (MIXED, 0, 0.0), (MIXED, 50, 2.0)])
def test_equals_the_reference(name: str, rows: list[tuple[int, int]], window: int, softcap: float) -> None:
    sample = paged_sample("", rows, window=window, softcap=softcap, block_tokens=16)
    assert Bound(name, CASE, with_heads(sample, CASE)).error() <= attention.tolerance["cuda bf16"]


def test_a_cache_of_fp8() -> None:
    case = CASE._replace(kv_dtype="fp8", head_dim=128)
    bound = Bound("flashinfer", case, with_heads(paged_sample("", DECODE, block_tokens=16), case))
    assert bound.error() <= attention.tolerance["cuda bf16"] and bound.reserved > 0


@pytest.mark.parametrize("name", NAMES)
def test_what_is_bound_once_runs_every_step(name: str) -> None:
    """A graph holds addresses and sizes of the bucket; all that differs between two steps is in buffers."""
    bound = Bound(name, CASE, with_heads(paged_sample("", DECODE, block_tokens=16), CASE))
    assert bound.error() <= 1e-2
    bound.arguments = {**bound.arguments, "kv_len": np.array([3, 701, 16, 200, 64], np.int32)}
    bound.arguments["tables"] = np.resize(bound.arguments["tables"][0], bound.arguments["tables"].shape)
    assert bound.error() <= 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_model(name: str, tmp_path: Path) -> None:
    """Two prompts, then single tokens: the logits of the numpy runner, over two kinds of layers."""
    facts, weights = small(tmp_path, "gemma3")
    case = AttentionCase((9, 0), "f32", "f32", facts.head_dim, facts.kv_heads, facts.heads // facts.kv_heads, False)
    opened = {"flash-attention": flash_attention.open_backend, "flashinfer": flashinfer.open_backend}[name](case)
    driver = DeviceDriver(facts, weights, attention=opened)
    for chunks in ([(0, [5, 6, 7, 8, 9, 10]), (1, [11])], [(0, [12]), (1, [13])]):
        inputs = driver.inputs(chunks, select=np.cumsum([len(ids) for _, ids in chunks]) - 1)
        theirs = driver.runner.run(inputs, driver.kv)["logits"]
        assert relative_error(driver.cuda.run(inputs, driver.cache)["logits"], theirs) <= 1e-5


def test_splits_depend_on_the_bucket_alone() -> None:
    assert flash_attention.splits(1, 8, 131072, 1) == 32
    assert flash_attention.splits(1, 8, 512, 1) == flash_attention.splits(256, 8, 8192, 1) == flash_attention.splits(1, 8, 8192, 2) == 1


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("flash-attention", {"capability": (8, 0)}, r"compute capability 9.x, this device has 8\.0"),
        ("flash-attention", {"kv_dtype": "fp8"}, "both bf16 or both fp16, not bf16 and fp8"),
        ("flash-attention", {"head_dim": 100}, "that 8 divides, not 100"),
        ("flash-attention", {"invariant": True}, "--batch-invariant is on"),
        ("flashinfer", {"capability": (7, 5)}, r"8\.0 and later, this device has 7\.5"),
        ("flashinfer", {"kv_dtype": "int8"}, "not bf16 and int8"),
        ("flashinfer", {"kv_dtype": "fp8"}, "of 128, 256 with a cache of fp8, not 64"),
        ("flashinfer", {"invariant": True}, "--batch-invariant is on"),
    ],
)
def test_what_it_does_not_serve_is_refused(name: str, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        open_attention(name, CASE._replace(**change), backend.ATTENTION_BACKENDS)
    assert refused.value.fix == {"--attention-backend": "triton"}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_installed_is_refused_with_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in (flash_attention.PACKAGE, flashinfer.PACKAGE):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"cannot be imported .*install.*or use triton"):
        open_attention(name, CASE, backend.ATTENTION_BACKENDS)


def test_a_model_that_it_does_not_serve_is_refused_before_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "gpu_missing", lambda: None)
    monkeypatch.setattr(backend, "open_device", device)
    config = EngineConfig(str(write_tiny(tmp_path / "small.gguf", SIZE)), runner="cuda", attention_backend="flashinfer")
    with pytest.raises(ConfigError, match="--attention-backend flashinfer: it "):
        worker.build(config, lambda stage, part: None)


def test_the_flag() -> None:
    assert {*backend.ATTENTION_BACKENDS, TRITON.name} == {*ATTENTION_BACKENDS}
    assert open_attention("triton", CASE._replace(invariant=True), {}) is TRITON

    def settled(asked: str, runner: str = "cuda") -> tuple[str, str]:
        given = EngineConfig("m", runner=runner, attention_backend=asked)
        config, said = resolve_runner(given, no_extension=None, no_gpu=None, cpu_cores=2)
        (decision,) = [each for each in said if each.name == "attention_backend"]
        assert decision.reason
        return config.attention_backend, decision.origin

    assert settled("auto") == ("triton", "default")
    assert settled("flashinfer") == ("flashinfer", "flag")
    with pytest.raises(ConfigError, match="one of auto, triton, flash-attention, flashinfer"):
        settled("xformers")
    with pytest.raises(ConfigError, match="is for --runner cuda"):
        settled("triton", runner="numpy")
