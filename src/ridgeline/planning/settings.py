"""Explanation of every engine setting: value, origin, reason, cost, and the metric that shows a bad value.

Owns the texts. Values come from `config.resolve`, costs from the planner: the same functions that the engine runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Final

from ridgeline.config.groups import EngineConfig
from ridgeline.config.resolve import GIB, Decision, KVCosts, Resolved
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.deployment import Deployment
from ridgeline.planning.step import RowGroup, pass_seconds, step_work


@dataclass(frozen=True, slots=True)
class ExplainedSetting:
    """One setting. `bytes` and `seconds` are the cost of its value; None where there is none of the kind."""

    name: str
    value: object
    origin: str
    reason: str
    metric: str
    bytes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CostInput:
    """Input of the costs of settings. `pace`: the tokens that `step_ms` allows, by the planner's estimate; an engine measures."""

    config: EngineConfig
    blocks: int
    costs: KVCosts
    facts: ModelFacts
    deployment: Deployment
    pace: Decision

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return self.config.max_model_len or 2

    def step_seconds(self, rows: RowGroup) -> float:
        """Estimated seconds of a step on the deployment's device."""
        return pass_seconds(self.deployment, step_work(self.deployment, [rows]))


@dataclass(frozen=True, slots=True)
class SettingHelp:
    """Explanation of a setting: the reason for its default, the metric that shows a bad value, and the cost of a value."""

    reason: str
    metric: str
    bytes: Callable[[CostInput], int] | None = None
    seconds: Callable[[CostInput], float] | None = None


SETTING_HELP: Final[Mapping[str, SettingHelp]] = {
    "model": SettingHelp("the model that is served", "none"),
    "max_model_len": SettingHelp(
        "the cost is one such sequence, and its last token",
        'finish_reason "length" where users wanted more, 400 context_length_exceeded: too short',
        bytes=lambda given: given.costs.sequence_blocks(given.length) * given.costs.block_bytes,
        seconds=lambda given: given.step_seconds(RowGroup(given.length - 1, 1)),
    ),
    "max_num_seqs": SettingHelp(
        "the cost is a step with all of them at half the context",
        "vllm:num_requests_waiting > 0 while vllm:kv_cache_usage_perc < 0.8: too few; vllm:inter_token_latency_seconds too high: too many",
        seconds=lambda given: given.step_seconds(RowGroup(given.length // 2, 1, given.config.rows)),
    ),
    "max_num_batched_tokens": SettingHelp(
        "the cost is a step of prefill alone; steps that also decode have fewer tokens (step_ms)",
        "vllm:inter_token_latency_seconds p99 far above p50: too many; vllm:time_to_first_token_seconds too high: too few",
        seconds=lambda given: given.step_seconds(RowGroup(0, given.config.tokens)),
    ),
    "step_ms": SettingHelp(
        "bounds the time that prefill adds to steps with decoding sequences",
        "vllm:inter_token_latency_seconds p99 above it: too many sequences; vllm:time_to_first_token_seconds too high: too short",
    ),
    "kv_cache_memory_bytes": SettingHelp(
        "all blocks together",
        "vllm:kv_cache_usage_perc > 0.9, or vllm:num_preemptions growing: too small",
        bytes=lambda given: given.blocks * given.costs.block_bytes,
    ),
    "swap_space": SettingHelp(
        "evicted KV blocks are copied back instead of computed again; on a CPU a larger KV cache serves better",
        "ridgeline_evicted_blocks and vllm:num_preemptions growing: too small; ridgeline_host_cache_hits stays 0: too large",
        bytes=lambda given: int(given.config.swap_space * GIB),
    ),
    "block_size": SettingHelp(
        "the cost is one block; a sequence wastes half a block on average",
        "vllm:prefix_cache_hits low against vllm:prefix_cache_queries: too large",
        bytes=lambda given: given.costs.block_bytes,
    ),
    "enable_prefix_caching": SettingHelp(
        "no cost: free blocks keep their content until they are reused",
        "vllm:prefix_cache_hits stays 0 although prompts share beginnings: off",
    ),
    "scheduling_policy": SettingHelp(
        "fcfs is fair; priority follows the requests' priority; static and one are for comparison",
        "vllm:request_queue_time_seconds too high for some",
    ),
    "depth": SettingHelp(
        "steps in flight: with two the host plans while the device computes", "time between steps longer than a step: too shallow"
    ),
    "speculative": SettingHelp(
        "several drafted ids are verified per step; the same answers, faster for text that repeats itself or its prompt",
        "vllm:spec_decode_num_accepted_tokens far below vllm:spec_decode_num_draft_tokens: off",
    ),
    "num_speculative_tokens": SettingHelp(
        "an upper bound: the number per step adapts to the acceptance",
        "vllm:spec_decode_num_accepted_tokens close to vllm:spec_decode_num_draft_tokens: too few",
    ),
    "seed": SettingHelp("requests without a seed derive theirs from it; None: random", "answers repeat after a restart: set"),
    "runner": SettingHelp("a GPU if available, else the native extension, else numpy", "`ridgeline doctor` says LOST and names the fix"),
    "dtype": SettingHelp("compute type of a GPU; other runners compute with the file's own formats", "answers lose quality with fp8: bf16"),
    "kv_dtype": SettingHelp(
        "half the bytes of a token are twice the sequences", "vllm:kv_cache_usage_perc > 0.9 and vllm:num_preemptions growing: too wide"
    ),
    "batch_invariant": SettingHelp(
        "on a GPU the last bits of an answer may depend on the batch; other runners are always invariant",
        "vllm:inter_token_latency_seconds: on",
    ),
    "attention_backend": SettingHelp(
        "on a GPU: Ridgeline's kernels, or those of an installed package", "attention's rows of `ridgeline bench gpu --only kernels`"
    ),
    "threads": SettingHelp("all CPU cores share a step", "other programs slow down: too many"),
    "record": SettingHelp("a file with every command, plan and result; it holds token ids", "the disk fills up: set"),
    "trace": SettingHelp("a file that Perfetto opens; costs a few percent of a step", "the disk fills up: set"),
    "step_timeout_seconds": SettingHelp(
        "an engine with work that does not move for this long is killed and started again; a long step moves",
        "engine restarts while it computes: too short",
    ),
}
"""Every field of `EngineConfig`."""


def explain(given: EngineConfig, resolved: Resolved, costs: CostInput) -> list[ExplainedSetting]:
    """All settings, in the order of `EngineConfig`."""
    decided = {decision.name: decision for decision in resolved.decisions}
    defaults = EngineConfig(model=given.model)
    explained = []
    for field in fields(EngineConfig):
        name, help = field.name, SETTING_HELP[field.name]
        decision = decided.get(name)
        origin = decision.origin if decision else "flag" if getattr(given, name) != getattr(defaults, name) else "default"
        reason = f"{decision.reason}; {help.reason}" if decision else help.reason
        if name == "model":
            origin = "argument"
        if name == "step_ms":
            reason = f"{help.reason}: {costs.pace.value} tokens, as {costs.pace.reason}; an engine measures its own seconds at its start"
        size, seconds = help.bytes and help.bytes(costs), help.seconds and help.seconds(costs)
        explained.append(ExplainedSetting(name, getattr(resolved.config, name), origin, reason, help.metric, size, seconds))
    return explained
