"""An alert's phase, evidence and first lever: what the ledger says of the slowest requests, in an operator's words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ridgeline.observe.charges import CAUSES, Charges
from ridgeline.observe.doctor import NATURAL
from ridgeline.observe.shares import Distribution

FIRST_TOKEN: Final = frozenset({"FirstTokenLate", "QueueGrows"})
"""Alerts about the time before an answer begins."""
TOKENS: Final = frozenset({"TokensSlow", "LateSteps", "Preemptions", "KVCacheFull"})
"""Alerts about the answer itself: what stood before its first token does not count."""
ODD: Final = "OddAnswers"
"""The alert about answers that are no sound model's."""
DOWN: Final = "Down"
"""The alert about a server that does not answer, so that it cannot be asked."""
COUNTED: Final = frozenset({"Errors", "EngineRestarts", "Rejections", "GoodputLow"})
"""Alerts about how requests end (`observe.failures`)."""
ALERTS: Final = FIRST_TOKEN | TOKENS | COUNTED | {ODD, DOWN}
THROUGHPUT, PREFIXES, ANSWERS = "ThroughputLow", "PrefixMisses", "AnswersDiffer"
QUESTIONS: Final = frozenset({THROUGHPUT, PREFIXES, ANSWERS})
"""Symptoms that people have without an alert: why so few tokens per second, why the prefix cache does not help, why the same prompt
has two answers at temperature 0."""
GENERATION: Final = frozenset({
    "others_prefill", "decode", "preempted", "recompute", "restart", "host", "detokenise", "slow_reader", "blocks", "drain",
})  # fmt: skip
STEPS: Final = frozenset({"others_prefill", "decode", "recompute"})
"""Causes within steps: what `LateSteps` is about."""
PHASES: Final = {
    **dict.fromkeys(("network", "template", "tokenise", "grammar"), "ingress"),
    **dict.fromkeys(("turn", "rows", "budget", "order", "prefix", "drain", "adapter", "adapter slot", "kv fetch"), "queue"),
    **dict.fromkeys(("blocks", "preempted", "recompute"), "KV cache"),
    **dict.fromkeys(("prefill", "others_decode"), "prefill"),
    **dict.fromkeys(("decode", "others_prefill"), "decode"),
    **dict.fromkeys(("host", "restart"), "host"),
    **dict.fromkeys(("detokenise", "slow_reader"), "egress"),
}
LEVERS: Final = {
    "network": "look at the network and the proxies in front; bodies arrive slowly",
    "template": "look for conversations that make the template expensive; `ridgeline admin profile` has the rest",
    "tokenise": "shorten prompts, or send them with the same beginnings; give the front end a core of its own",
    "grammar": "send the same schemas again instead of new ones: compiled grammars are kept",
    "host": "free the processor: fewer other programs on these cores, fewer streams per server",
    "turn": "lower --step-ms or --max-num-batched-tokens: a request waits for the step in flight",
    "rows": "raise --max-num-seqs if KV blocks are free, else add a replica; shorter --max-tokens free rows sooner",
    "blocks": "raise --kv-cache-memory-bytes, or --kv-dtype int8 for twice the tokens; lower --max-model-len",
    "budget": "cache prefixes (`ridgeline explain --prefix`), shorten prompts, or add a replica: prompts take all there is to compute",
    "order": "give its class another priority, or the policy another name (--scheduling-policy)",
    "prefix": "nothing: it waits for blocks that another computes, which is less than computing them again",
    "drain": "lower the number of steps in flight",
    "adapter": "keep the adapter loaded",
    "adapter slot": "raise --max-loras, or send requests of few adapters to each replica",
    "kv fetch": "give --kv-cache-dir a faster disk; a fetch never takes longer than computing would",
    "prefill": "cache its prefix: `ridgeline explain --prefix` says what makes it miss; else shorten the prompt",
    "others_prefill": "lower --step-ms: prompts get fewer tokens in steps with decoding rows",
    "others_decode": "lower --max-num-seqs, or raise --step-ms: streams take the steps that prompts would have",
    "decode": "a format of fewer bits, --speculative ngram, or fewer streams per server: decoding reads the weights once per step",
    "preempted": "raise --kv-cache-memory-bytes, or lower --max-num-seqs: too many sequences share the blocks; raise --max-num-seqs where "
    "requests of a higher class took its row",
    "recompute": "raise --kv-cache-memory-bytes, or lower --max-num-seqs: what a preemption drops is computed again",
    "restart": "read the log for why the engine ended; `incidents` in the state folder has what led to it",
    "detokenise": "give the front end a core of its own; `ridgeline admin profile` names its functions",
    "slow_reader": "nothing here: its client, or a proxy in front, does not read",
}
"""Cause → what to do first."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An answer to an alert. `evidence`: sentences with numbers, the strongest first."""

    alert: str
    phase: str
    cause: str
    evidence: tuple[str, ...]
    lever: str


def investigate(alert: str, ttft: Distribution | None, total: Distribution | None) -> Finding | None:
    """Finds what is behind an alert, of the requests of a window; None where too little is known. `alert` is one of `ALERTS`, or
    `THROUGHPUT`."""
    found = ttft if alert in FIRST_TOKEN else total
    if found is None:
        return None
    among = STEPS if alert == "LateSteps" else GENERATION if alert in TOKENS else found.causes
    slow = {cause: seconds for cause, (_, seconds) in found.causes.items() if cause in among}
    charges = Charges(slow)
    cause = charges.first
    if cause is None:
        return None
    return Finding(alert, PHASES.get(cause, "queue"), cause, _evidence(found, slow, cause, charges.total), LEVERS.get(cause, ""))


def _evidence(found: Distribution, slow: Mapping[str, float], cause: str, whole: float) -> tuple[str, ...]:
    median = found.causes[cause][0]
    others = sorted((each for each in slow if each != cause), key=lambda each: -slow[each])[:2]
    rest = ", ".join(f"{each} {1e3 * slow[each]:,.0f} ms" for each in others)
    spent = f"{1e3 * slow[cause]:,.0f} ms, {slow[cause] / whole:.0%}"
    return (
        f"the slowest of {found.requests} requests spent {spent}, as {CAUSES.get(cause, cause)}",
        f"those in the middle {1e3 * median:,.0f} ms; p50 {1e3 * found.p50:,.0f} ms, p95 {1e3 * found.p95:,.0f} ms",
        *((f"next: {rest}",) if rest else ()),
    )


def investigate_prefixes(report: Mapping[str, Any]) -> Finding | None:
    """Finds what makes prompts miss the prefix cache most, by a report of the prefix doctor as the admin socket has it; None without
    requests."""
    if not report["requests"]:
        return None
    share = report["cached_tokens"] / max(1, report["prompt_tokens"])
    looked = f"{share:.0%} of {report['prompt_tokens']:,} prompt tokens of {report['requests']} requests were cached"
    harmful = [each for each in report["offenders"] if each["cause"] not in NATURAL]
    if not harmful:
        return Finding(PREFIXES, "KV cache", "new", (looked, "no two prompts shared more than they found"), "nothing: prompts are new")
    first, example = harmful[0], harmful[0]["example"]
    lost = f"{first['requests']} requests lost {first['tokens']:,} tokens, {first['ms']:,.0f} ms, from token {first['at']} on"
    texts = (f"{example['theirs']!r:.80} became {example['mine']!r:.80}",) if example and example["mine"] else ()
    return Finding(PREFIXES, "KV cache", first["cause"], (lost, looked, *texts), first["what"])


def investigate_answers(status: Mapping[str, Any]) -> Finding:
    """Finds why the same prompt may have two answers at temperature 0, by a server's status."""
    runner, mark = status["runner"], status["fingerprint"]
    if not status["is_exact"]:
        text = "the last bits of a sum depend on which requests share its step, and a near tie between two ids then turns"
        return Finding(ANSWERS, "decode", "batch", (f"the runner is {runner}, without --batch-invariant", text), "--batch-invariant")
    text = f"an answer whose system_fingerprint is not {mark} is of other weights, or of another KV format"
    lever = "compare system_fingerprint, ids of the prompt (`/tokenize`) and parameters of both answers: one of them differs"
    exact = f"the runner is {runner}: bits depend on the sequence alone, never on a batch"
    return Finding(ANSWERS, "ingress", "request", (exact, text), lever)


def investigate_odd(status: Mapping[str, Any]) -> Finding:
    """Finds what is wrong with answers that loop, or end at once, by a server's status."""
    loops, ends, findings = status["runaway_answers"], status["immediate_ends"], tuple(status["findings"])
    seen = f"since the start {loops} answers repeated themselves up to their limit, {ends} ended at their first token"
    if findings:
        return Finding(
            ODD, "ingress", "model", (seen, *findings), "mend what the checks of the model found: its file, template or end tokens"
        )
    if not loops and not ends:
        return Finding(ODD, "decode", "sound", (seen, "the checks of the model found nothing"), "nothing: no answer is odd")
    sound = "the checks of the model found nothing"
    if ends > loops:
        lever = "compare a prompt as it is rendered (/apply-template) with the model's own form: it seems to end there already"
        return Finding(ODD, "ingress", "template", (seen, sound), lever)
    return Finding(
        ODD, "decode", "endless", (seen, sound), "give requests `stop` and a lower `max_tokens`, and look at temperature and template"
    )
