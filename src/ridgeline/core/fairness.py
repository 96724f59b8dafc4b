"""Fair shares of tenants: start-time fair queueing (Goyal, Vin, Cheng 1997) over what sequences cost the engine.

A sequence gets a start tag when it is admitted: the virtual time, or the end of what its tenant has been charged with if that is later.
Tags never change, so the order of sequences is static. A tenant is charged with an estimate over its weight at admission, and with the true
cost at the end, which moves the tags of its later sequences alone; within a tenant order is that of arrival. Virtual time is the latest tag
that has started. Integers throughout: a replay charges the same. With one tenant the order is first come, first served.
"""

from dataclasses import dataclass
from typing import Final

from ridgeline.core.events import Usage
from ridgeline.core.params import Admitted
from ridgeline.core.sequence import Sequence

MAX_ACCOUNTS: Final = 1_024
UNIT: Final = 1_000
"""Fractions of a charged token that are counted."""
DECODE_TOKENS: Final = 2
"""Cost of an output token, in prefill tokens; twice that where the sequence holds as much of the KV cache as a row may on average."""
FIRST_GUESS: Final = 64
"""Outputs that a tenant's first sequence is taken to have."""
MEAN_OVER: Final = 8


def cost(computed_prompt: int, prompt: int, outputs: int, row_share: int) -> int:
    """Cost of a sequence in thousandths of a prefill token: prefill, decode steps, and KV held over these steps.

    row_share  tokens of the KV cache for each row
    """
    kv = outputs * (2 * prompt + outputs) * UNIT // (2 * row_share)
    return computed_prompt * UNIT + DECODE_TOKENS * (outputs * UNIT + kv)


@dataclass(slots=True)
class _Account:
    """A tenant. `charged`: virtual time up to which it is charged; `last`: its latest tag; `outputs`: mean of its sequences, in `UNIT`."""

    charged: int = 0
    last: int = 0
    outputs: int = FIRST_GUESS * UNIT
    open: int = 0


class FairShares:
    """Start tags of sequences."""

    def __init__(self, rows: int, cache_tokens: int) -> None:
        self._row_share = max(1, cache_tokens // rows)
        self._accounts: dict[str, _Account] = {}
        self._now = 0
        """Virtual time."""

    def tag(self, request: Admitted, choice: int) -> tuple[int, int]:
        """Returns start tag and estimated charge of a choice. The first one computes the prompt, the others find it in the cache."""
        account = self._accounts.get(request.tenant) or self._open(request.tenant)
        account.open += 1
        tag = account.last = max(self._now, account.charged, account.last)
        prompt, outputs = len(request.prompt), min(request.max_tokens, account.outputs // UNIT)
        charge = cost(0 if choice else prompt, prompt, outputs, self._row_share) // request.weight
        account.charged = max(self._now, account.charged) + charge
        return tag, charge

    def lead(self, tag: int) -> int | None:
        """Prefill tokens by which a tag is ahead of virtual time; None where only one tenant is known, who has no share to keep."""
        return (tag - self._now) // UNIT if len(self._accounts) > 1 else None

    def on_start(self, tag: int) -> None:
        """Advances virtual time to the tag of a sequence that gets a row; to the lowest that waited, where others may start before it."""
        self._now = max(self._now, tag)

    def settle(self, sequence: Sequence, usage: Usage) -> None:
        """Charges what a closed sequence has cost in place of the estimate: nothing, if it never ran."""
        request = sequence.request
        account = self._accounts[request.tenant]
        true = 0
        if sequence.cached_tokens >= 0:
            true = cost(usage.prompt_tokens - usage.cached_tokens, usage.prompt_tokens, usage.completion_tokens, self._row_share)
            if sequence.pooling is None:
                account.outputs += (usage.completion_tokens * UNIT - account.outputs) // MEAN_OVER
        account.charged += true // request.weight - sequence.charge
        account.open -= 1

    def on_idle(self) -> None:
        """Forgets what was used while nothing else was asked for: no request is open."""
        self._now = max(self._now, max([account.charged for account in self._accounts.values()], default=0))

    def _open(self, tenant: str) -> _Account:
        if len(self._accounts) >= MAX_ACCOUNTS:
            idle = [name for name, account in self._accounts.items() if not account.open]
            for name in idle[: max(1, len(idle) // 2)]:
                del self._accounts[name]
        account = self._accounts[tenant] = _Account()
        return account
