"""RoPE of a config.json: `rope_theta` with `rope_scaling`, or the newer `rope_parameters`, for all layers or per kind of layer."""

from collections.abc import Mapping
from typing import Any

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.values import bounded_number, quoted
from ridgeline.facts.headers.fields import MAX_CONTEXT, Fields
from ridgeline.facts.headers.rope import (
    DEFAULT_BASE,
    MAX_BASE,
    MAX_FACTOR,
    Ropes,
    attention_scale,
    linear,
    llama3,
    longrope,
    longrope_scale,
    yarn,
)
from ridgeline.facts.model import Rope
from ridgeline.models.declare import Architecture

_KINDS = {"full": "full_attention", "window": "sliding_attention"}
_SCALINGS = {
    "default": "none",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",
}
"""`rope_type` of a file → function of `rope.py`; "none": no scaling."""


def read_config_ropes(fields: Fields, head_dim: int, context: int) -> Ropes:
    """`Rope` of full and of window layers. Raises ModelFormatError for kinds of scaling that are not supported."""
    architecture = fields.architecture
    if not architecture.has_rope:
        return Ropes({}, None, context)
    by_kind: dict[str, Rope] = {}
    long, max_context, scores = None, context, 1.0
    for kind in _KINDS:
        rope = RopeFields(fields, architecture, kind, head_dim, context)
        by_kind[kind], long_rope = rope.make_rope()
        long = long or long_rope
        max_context = max(max_context, rope.max_context())
        scores = rope.scores()
    return Ropes(by_kind, long, max_context, scores)


class RopeFields:
    """The keys of one `Rope`, each bounded where it is read."""

    def __init__(self, fields: Fields, architecture: Architecture, kind: str, head_dim: int, context: int) -> None:
        has_own_base = kind == "window" and architecture.window_rope_base is not None
        self.values = _parameters(fields, kind, has_own_base)
        self.context, self.mscaled = context, architecture.yarn_scores
        default = fields.number("rope_local_base_freq" if has_own_base else "rope_theta", 1.0, MAX_BASE, default=DEFAULT_BASE)
        self.base = self.number("rope_theta", 1.0, MAX_BASE, default)
        share = self.number("partial_rotary_factor", 1e-3, 1.0, fields.number("partial_rotary_factor", 1e-3, 1.0, default=1.0))
        self.dim = int(head_dim * share)
        if self.dim < 2 or self.dim % 2:
            raise ModelFormatError(
                f"config.json: partial_rotary_factor {share} of heads of {head_dim} is {self.dim}, an even number ≥ 2 was expected"
            )
        # As in transformers, the key outside `rope_scaling` has priority.
        outside = fields.values.get("original_max_position_embeddings")
        stated = self.values.get("original_max_position_embeddings") if outside is None else outside
        self.original = int(bounded_number(stated, "config.json: original_max_position_embeddings", 2, MAX_CONTEXT, max(2, context)))
        self.scaling = self._scaling()

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        return bounded_number(self.values.get(key), f"config.json: {key} of RoPE", low, high, default)

    def make_rope(self) -> tuple[Rope, tuple[int, Rope] | None]:
        """(the rope, the long rope of LongRoPE as `ModelFacts.long_rope` or None)."""
        if self.scaling == "none":
            return Rope(self.base, self.dim), None
        if self.scaling == "longrope":
            return self._longrope()
        factor = self._factor()
        if self.scaling == "linear":
            return linear(self.base, self.dim, factor), None
        if self.scaling == "llama3":
            low, high = self.number("low_freq_factor", 1e-3, 1e6), self.number("high_freq_factor", 1e-3, 1e6)
            return llama3(self.base, self.dim, factor, low, high, self.original), None
        return self._yarn(factor), None

    def max_context(self) -> int:
        """Positions after scaling. With YaRN the file states the context before it."""
        return min(MAX_CONTEXT, int(self.original * self._factor())) if self.scaling == "yarn" else self.context

    def scores(self) -> float:
        """Factor on scores: DeepSeek's YaRN scales queries and keys by `mscale_all_dim`, those numbers too that do not turn."""
        if self.scaling != "yarn" or not self.mscaled:
            return 1.0
        return attention_scale(self._factor(), self.number("mscale_all_dim", 0.0, 100.0, 0.0)) ** 2

    def _scaling(self) -> str:
        kind = self.values.get("rope_type", self.values.get("type"))
        if kind == "yarn" and "short_factor" in self.values:
            return "longrope"
        scaling = "none" if kind is None else _SCALINGS.get(str(kind))
        if scaling is None:
            raise ModelFormatError(
                f"config.json: RoPE scaling {quoted(kind)} is not supported; supported: {', '.join(_SCALINGS)}. "
                "Within the context that the model was trained for the key may be removed"
            )
        return scaling

    def _factor(self) -> float:
        """Ratio by which the context is extended; by default that of the file's two contexts."""
        default = None if self.scaling in ("linear", "llama3") else self.context / self.original
        return self.number("factor", 1e-3, MAX_FACTOR, default)

    def _yarn(self, factor: float) -> Rope:
        scale = self.values.get("attention_factor")
        own, every = (self.number(key, 0.0, 100.0, 0.0) for key in ("mscale", "mscale_all_dim"))
        if scale is None and own and every and not self.mscaled:
            raise ModelFormatError("config.json: RoPE scaling yarn with mscale and mscale_all_dim is not supported; attention_factor is")
        mscaled = attention_scale(factor, own) / attention_scale(factor, every) if own and every else None
        truncate = self.values.get("truncate", True)
        if not isinstance(truncate, bool):
            raise ModelFormatError(f"config.json: truncate of RoPE is {quoted(truncate)}, true or false was expected")
        return yarn(
            self.base,
            self.dim,
            factor,
            self.original,
            fast=self.number("beta_fast", 1e-3, 1e6, 32.0),
            slow=self.number("beta_slow", 1e-3, 1e6, 1.0),
            scale=mscaled if scale is None else self.number("attention_factor", 0.0, 100.0),
            truncate=truncate,
        )

    def _longrope(self) -> tuple[Rope, tuple[int, Rope]]:
        scale = self.number("attention_factor", 0.0, 100.0, longrope_scale(self._factor(), self.original))
        short, long = (longrope(self.base, self.dim, self._list(key), scale) for key in ("short_factor", "long_factor"))
        return short, (self.original, long)

    def _list(self, key: str) -> list[float]:
        values = self.values.get(key)
        if not isinstance(values, list) or len(values) != self.dim // 2:
            raise ModelFormatError(
                f"config.json: {key} of RoPE must list {self.dim // 2} factors, one per two of the {self.dim} dimensions"
            )
        return [bounded_number(value, f"config.json: {key} of RoPE", 1e-6, MAX_FACTOR) for value in values]


def _parameters(fields: Fields, kind: str, has_own_base: bool) -> Mapping[str, Any]:
    """RoPE keys of one kind of layer. Scaling without a kind does not apply to window layers that have their own base."""
    parameters, scaling = fields.values.get("rope_parameters"), fields.values.get("rope_scaling")
    for key, values in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        if values is not None and not isinstance(values, dict):
            raise ModelFormatError(f"config.json: {key} is {quoted(values)}, an object was expected")
    stated = parameters or scaling or {}
    if any(name in stated for name in _KINDS.values()):
        stated = stated.get(_KINDS[kind]) or {}
        if not isinstance(stated, dict):
            raise ModelFormatError(f"config.json: RoPE of {_KINDS[kind]} is {quoted(stated)}, an object was expected")
        return stated
    return {} if has_own_base else stated
