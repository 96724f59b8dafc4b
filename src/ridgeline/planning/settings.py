"""Every setting of an engine explained: its value, where it comes from, why, what it costs, and the metric that shows it is wrong.

Owns the words. Values come from `config.resolve`, costs from the planner: the same functions that the engine runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from ridgeline.config.groups import EngineConfig
from ridgeline.config.resolve import GIB, Decision, KVCosts, Resolved
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.deployment import Deployment
from ridgeline.planning.step import Rows, pass_seconds, step_work


@dataclass(frozen=True, slots=True)
class Explained:
    """One setting. `bytes` and `seconds` are what its value costs, None where it costs nothing of the kind."""

    name: str
    value: object
    origin: str
    reason: str
    metric: str
    bytes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """Input of the costs. `pace`: how many tokens `step_ms` comes to, by the planner's estimate; an engine measures."""

    config: EngineConfig
    pages: int
    costs: KVCosts
    facts: ModelFacts
    deployment: Deployment
    pace: Decision

    def step_seconds(self, rows: list[Rows]) -> float:
        """The planner's estimate of a step on the deployment's device."""
        return pass_seconds(self.deployment, step_work(self.deployment, rows))


Cost = Callable[[Case], tuple[int | None, float | None]]


def _context(case: Case) -> tuple[int | None, float | None]:
    length = case.config.max_model_len or 1
    return case.costs.sequence_pages(length) * case.costs.page_bytes, case.step_seconds([Rows(length - 1, 1)])


def _rows(case: Case) -> tuple[int | None, float | None]:
    half = (case.config.max_model_len or 2) // 2
    return None, case.step_seconds([Rows(half, 1, case.config.rows)])


def _step(case: Case) -> tuple[int | None, float | None]:
    return None, case.step_seconds([Rows(0, case.config.tokens)])


def _cache(case: Case) -> tuple[int | None, float | None]:
    return case.pages * case.costs.page_bytes, None


def _tier(case: Case) -> tuple[int | None, float | None]:
    return int(case.config.swap_space * GIB), None


def _block(case: Case) -> tuple[int | None, float | None]:
    return case.costs.page_bytes, None


def _free(case: Case) -> tuple[int | None, float | None]:
    return None, None


@dataclass(frozen=True, slots=True)
class Meaning:
    """Words on a setting: the reason for its value where nobody decided, the metric that shows it is wrong, and its cost."""

    reason: str
    metric: str
    cost: Cost = _free


MEANINGS: Final[Mapping[str, Meaning]] = {
    "model": Meaning("what is served", "none: it is what you asked for"),
    "max_model_len": Meaning(
        "the cost is one such sequence, and its last token",
        'finish_reason "length" where users wanted more, 400 context_length_exceeded: too short',
        _context,
    ),
    "max_num_seqs": Meaning(
        "the cost is a step with all of them at half the context",
        "vllm:num_requests_waiting > 0 while vllm:kv_cache_usage_perc < 0.8: too few; vllm:inter_token_latency_seconds too high: too many",
        _rows,
    ),
    "max_num_batched_tokens": Meaning(
        "the cost is a step full of a prompt; less is computed while somebody waits for the next token",
        "vllm:inter_token_latency_seconds p99 far above p50: too many; vllm:time_to_first_token_seconds too high: too few",
        _step,
    ),
    "step_ms": Meaning(
        "bounds what prompts add to everyone's next token",
        "vllm:inter_token_latency_seconds p99 above it: too many sequences; vllm:time_to_first_token_seconds too high: too short",
    ),
    "kv_cache_memory_bytes": Meaning(
        "all pages together", "vllm:kv_cache_usage_perc > 0.9, or vllm:num_preemptions growing: too small", _cache
    ),
    "swap_space": Meaning(
        "cached KV that is pushed out is copied back instead of computed again; on a CPU a larger KV cache serves better",
        "ridgeline_evicted_blocks and vllm:num_preemptions growing: too small; ridgeline_host_cache_hits stays 0: too large",
        _tier,
    ),
    "block_size": Meaning(
        "the cost is one page; a sequence wastes half a block on average",
        "vllm:prefix_cache_hits low against vllm:prefix_cache_queries: too large",
        _block,
    ),
    "enable_prefix_caching": Meaning(
        "free: pages that nobody holds keep their content", "vllm:prefix_cache_hits stays 0 although prompts share beginnings: off"
    ),
    "scheduling_policy": Meaning(
        "fcfs is fair; priority obeys the request; static and one are for comparison", "vllm:request_queue_time_seconds too high for some"
    ),
    "depth": Meaning("steps in flight: two hide the host behind the device", "time between steps beside their own: too shallow"),
    "speculative": Meaning(
        "ids that repeat are verified several in a step; the same answers, quicker for text that quotes itself or its prompt",
        "vllm:spec_decode_num_accepted_tokens far below vllm:spec_decode_num_draft_tokens: off",
    ),
    "num_speculative_tokens": Meaning(
        "an upper bound: how many are worth a step is seen as it runs",
        "vllm:spec_decode_num_accepted_tokens close to vllm:spec_decode_num_draft_tokens: too few",
    ),
    "seed": Meaning("requests without a seed draw theirs from it; none: unpredictable", "answers that repeat after a restart: set"),
    "runner": Meaning(
        "a GPU where one is, native code where the extension is, numpy everywhere", "`ridgeline doctor` says LOST: it names the fix"
    ),
    "dtype": Meaning("what a GPU computes with; other runners compute with the file's own formats", "answers lose quality with fp8: bf16"),
    "kv_dtype": Meaning(
        "half the bytes of a token are twice the sequences", "vllm:kv_cache_usage_perc > 0.9 and vllm:num_preemptions growing: too wide"
    ),
    "batch_invariant": Meaning(
        "on a GPU the last bits of an answer may depend on its neighbours; elsewhere they never do", "vllm:inter_token_latency_seconds: on"
    ),
    "attention_backend": Meaning(
        "on a GPU: our kernels, or those of a package that is installed", "attention's rows of `ridgeline bench gpu --only kernels`"
    ),
    "threads": Meaning("all processors share a step", "the machine does other work meanwhile: too many"),
    "record": Meaning("a file with every command, plan and result; it holds token ids", "the disk fills up: set"),
    "trace": Meaning("a file that Perfetto opens; costs a few percent of a step", "the disk fills up: set"),
    "step_timeout_seconds": Meaning("a step that computes nothing for so long is a hang", "engine restarts while it computes: too short"),
}
"""Every field of `EngineConfig`."""


def explain(given: EngineConfig, resolved: Resolved, case: Case) -> list[Explained]:
    """All settings, in the order of `EngineConfig`."""
    decided = {decision.name: decision for decision in resolved.decisions}
    defaults = EngineConfig(model=given.model)
    found = []
    for field in fields(EngineConfig):
        meaning = MEANINGS[field.name]
        value: Any = getattr(resolved.config, field.name)
        decision = decided.get(field.name)
        origin = decision.origin if decision else "flag" if getattr(given, field.name) != getattr(defaults, field.name) else "default"
        if field.name == "model":
            origin = "argument"
        reason = f"{decision.reason}; {meaning.reason}" if decision else meaning.reason
        if field.name == "step_ms":
            reason = f"{meaning.reason}: {case.pace.value} tokens, as {case.pace.reason}; an engine measures its own seconds at its start"
        found.append(Explained(field.name, value, origin, reason, meaning.metric, *meaning.cost(case)))
    return found
