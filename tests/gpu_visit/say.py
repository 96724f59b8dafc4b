"""Rows of a step: a JSON object a line. An error of one case does not end the others."""

import json
import traceback
from collections.abc import Callable
from typing import Any


def say(names: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> None:
    """Prints what a case gives under its names, or its error and where it happened."""
    try:
        found = measure()
    except Exception as error:
        place = "".join(traceback.format_tb(error.__traceback__)[-3:])
        found = {"error": f"{type(error).__name__}: {error}"[:2000], "place": place[-2000:]}
    print(json.dumps({**names, **found}), flush=True)
