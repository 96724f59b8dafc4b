"""Reasoning as clients ask for it: whether, how much, with which budget, and if it is to be told; and what of it a template reads.

Owns the spellings. Marks are `text.tools.marks`'s, the budget is enforced where ids are sampled (`core.thinking`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ridgeline.engine.admit import BOUNDS
from ridgeline.server import wire
from ridgeline.server.errors import ApiError
from ridgeline.server.notes import Notes
from ridgeline.text.chat import ChatTemplate
from ridgeline.text.tools.families import SWITCHES

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
BUDGETS: Final = ("thinking_token_budget", "thinking_budget", "thinking_budget_tokens", "reasoning_budget", "reasoning_budget_tokens")
"""Names of the same number: vLLM's, Qwen's, and llama.cpp's. -1 is no limit."""
NO_LIMIT: Final = -1


@dataclass(frozen=True, slots=True)
class Wish:
    """A client's wish for the reasoning of an answer.

    enabled  None: the template decides
    budget   None: the server decides; `NO_LIMIT`: none
    field    that states the budget
    is_told  False: the reasoning is left out of the answer
    """

    effort: str | None
    enabled: bool | None
    budget: int | None
    field: str
    is_told: bool


def wish(payload: wire.ChatCompletionRequest) -> Wish:
    """The wish of a body, in the words of several servers; of several budgets the smallest counts. Raises ApiError."""
    budgets = {name: value for name in BUDGETS if (value := getattr(payload, name)) is not None}
    effort: str | None = payload.reasoning_effort
    enabled, is_told = payload.enable_thinking, payload.include_reasoning is not False
    if payload.thinking is not None:
        enabled = {"enabled": True, "adaptive": True, "disabled": False, None: None}[payload.thinking.type]
        if payload.thinking.budget_tokens is not None:
            budgets["thinking"] = payload.thinking.budget_tokens
    if payload.reasoning is not None:
        asked = payload.reasoning
        effort, is_told = effort or asked.effort, is_told and not asked.exclude
        enabled = asked.enabled if enabled is None else enabled
        if asked.max_tokens is not None:
            budgets["reasoning"] = asked.max_tokens
    if isinstance(payload.think, str):
        effort = effort or payload.think
    elif payload.think is not None and enabled is None:
        enabled = payload.think
    if effort is not None and effort not in EFFORTS:
        raise ApiError("invalid_value", f"think is no effort; send true, false, or one of {', '.join(EFFORTS)}", param="think")
    high = BOUNDS["thinking_token_budget"].high
    for name, value in budgets.items():
        if value != NO_LIMIT and not 0 <= value <= high:
            message = f"{name} is out of range; a budget is at least 0 and at most {high}, or -1 for no limit"
            raise ApiError("invalid_value", message, param=name)
    field = min(budgets, key=lambda name: high + 1 if budgets[name] == NO_LIMIT else budgets[name], default=BUDGETS[0])
    if budgets and payload.use_beam_search:
        raise ApiError("invalid_value", f"{field} has no effect on a beam search; leave it out", param=field)
    return Wish(effort, False if effort == "none" else enabled, budgets.get(field), field, is_told)


def template_arguments(asked: Wish, given: Mapping[str, object], template: ChatTemplate, notes: Notes) -> dict[str, object]:
    """Variables that the template is given: the `given` variables, before what a wish means to this template.

    Raises ApiError for an effort where it reads neither efforts nor a switch.
    """
    found = dict(given)
    switches = [name for name in SWITCHES if name in template.variables]
    enabled = True if asked.enabled is None and asked.effort is not None else asked.enabled
    if enabled is not None:
        for name in switches:
            found.setdefault(name, enabled)
    if asked.effort not in (None, "none"):
        if "reasoning_effort" in template.variables:
            found.setdefault("reasoning_effort", asked.effort)
        elif switches:
            notes.ignore("reasoning_effort", "this model's chat template reads only whether to think")
        else:
            message = 'this model\'s chat template does not read reasoning_effort; leave it out, or send "none"'
            raise ApiError("unsupported_parameter", message, param="reasoning_effort")
    if asked.budget not in (None, NO_LIMIT) and "thinking_budget" in template.variables:
        found.setdefault("thinking_budget", asked.budget)
    return found


def budget(asked: Wish, template: ChatTemplate, default: int, notes: Notes, *, can_reason: bool) -> int | None:
    """The most tokens of an answer's reasoning; None: no limit. A model that cannot be told not to think gets 0.

    default     for requests that state none; `NO_LIMIT`: none
    can_reason  the answer may begin with reasoning
    """
    if not can_reason:
        if asked.budget not in (None, NO_LIMIT):
            notes.ignore(asked.field, "this answer has no reasoning that could be limited")
        return None
    if asked.enabled is False and not any(name in template.variables for name in SWITCHES):
        return 0
    tokens = default if asked.budget is None else asked.budget
    return None if tokens == NO_LIMIT else tokens
