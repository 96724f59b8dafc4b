"""How many tokens of prompts a simulated step may have beside rows that wait for their next token: what an engine measures at its start."""

from array import array

from ridgeline.core.pace import StepSeconds
from ridgeline.core.plan import Plan
from ridgeline.sim.fleet.durations import Durations

ROWS = 16
"""Rows of the step that tells what a row costs."""


def step_seconds(durations: Durations, tokens: int) -> StepSeconds:
    """From three steps on empty contexts: one row, `ROWS` rows, and one row that computes `tokens` tokens.

    A step that waits for memory has tokens for nothing, which the line tells the better the more tokens it goes through.
    """
    nothing = array("i", [0])
    chunk = Plan(0, nothing, nothing, array("i", [tokens]), array("i", [0]) * tokens, bytearray(1))
    return StepSeconds.fitted(durations.decode([0], 0), durations.decode([0] * ROWS, 0), ROWS, durations.seconds(chunk), tokens)
