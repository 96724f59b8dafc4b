"""A sentence on what speculation does now, and why: of the newest `core.events.Drafting`."""

from ridgeline.core.events import Drafting

SHALLOW = 0.05
"""Drafts of a row below which it hardly drafts."""


def explain_drafts(now: Drafting | None) -> str:
    """A sentence; empty where nothing drafts, or nothing has been told yet."""
    if now is None:
        return ""
    rows = f"{now.rows} decoding row{'s' if now.rows > 1 else ''}"
    if not now.offers:
        return f"no drafts: none of {rows} has anything to offer"
    price = f"a draft is right with {now.chance:.0%}, and one more token makes a step of {rows} {now.token_cost:.0%} longer"
    if now.depth < SHALLOW:
        return f"no drafts, although {now.offers} of {rows} could offer some: {price}"
    return f"{now.depth:.2g} drafts for each of {now.offers} of {rows}: {price}"
