"""Prefill and decode on separate devices: worth it where moving the KV cache costs less than the phases cost each other. Seconds."""

from typing import Literal


def kv_transfer_seconds(kv_bytes: float, link_bytes_per_second: float) -> float:
    """Time to move one prompt's KV cache over one direction of a link. Notes on inference, part 2 (Splitwise, DistServe, Mooncake)."""
    return kv_bytes / (link_bytes_per_second / 2)


def interference_seconds(mixed_step: float, decode_step: float) -> float:
    """What a prefill in the same step adds to every running stream's gap."""
    return max(0.0, mixed_step - decode_step)


def phase_layout(interference: float, kv_transfer: float) -> Literal["separate", "colocated"]:
    """Separate pools where the transfer is shorter than the interference: 20 < 95 ms yes, 20 < 8 ms no.

    Notes on inference, part 2, `choose_layout`.
    """
    return "separate" if kv_transfer < interference else "colocated"
