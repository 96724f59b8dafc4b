"""Tools of a chat as clients offer them. What a choice of them means is `text.tools.calling`'s."""

from ridgeline.server import wire
from ridgeline.server.errors import ApiError
from ridgeline.text.tools.calling import Offer, Tool, read_offer


def offered(payload: wire.ChatCompletionRequest) -> Offer:
    """Tools that a chat's body offers. Raises RequestError for a `tool_choice` that is none, ApiError for one that has no effect."""
    functions = [each.function for each in payload.tools or ()]
    asked = payload.tool_choice
    if (asked == "required" or isinstance(asked, dict)) and payload.use_beam_search:
        raise ApiError("invalid_value", "tool_choice has no effect on a beam search; leave it out", param="tool_choice")
    tools = [Tool(each.name, each.parameters, bool(each.strict)) for each in functions]
    return read_offer(tools, asked, payload.parallel_tool_calls is not False)
