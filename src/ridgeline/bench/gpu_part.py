"""One part of `ridgeline bench gpu` in a process of its own: an error of the device ends it and no other part.

Owns the rows' way out: a line of JSON each on stdout, so that what was measured is there whatever happens next. Settings are one JSON
object, the only argument. Parts that need the engine are beside this file, the others the computing wing's.
"""

import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from ridgeline.bench.gpu_host import host
from ridgeline.bench.gpu_serving import serving, soak
from ridgeline.bench.gpu_ttft import ttft
from ridgeline.errors import RidgelineError
from ridgeline.facts.headers.checkpoint import facts_of_config
from ridgeline.facts.model import ModelFacts

PARTS: Final = "ridgeline.compute.cuda.bench.parts"
WATCH: Final = "ridgeline.compute.cuda.bench.watch"
SMALL: Final = {
    "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 16,
    "vocab_size": 512,
}  # fmt: skip
"""Of a config.json, in place of its own."""


def rows(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row about the device, then the rows of the part that `settings` name. Raises ConfigError where there is no GPU."""
    computing = importlib.import_module(PARTS)
    facts = facts_of_config(Path(settings["model"]))
    device = computing.device_of(settings["device"])
    yield {"about": computing.about(device)}
    match settings["part"]:
        case "serving":
            yield from serving(facts, settings, importlib.import_module(WATCH).Watched(device))
        case "soak":
            yield from soak(facts, settings, device.memory)
        case "host":
            yield from host(small_facts(Path(settings["model"])), settings)
        case "ttft":
            yield from ttft(settings)
        case part:
            yield from computing.PARTS[part](facts, device, settings)


def small_facts(model: Path) -> ModelFacts:
    """Facts of a model of the same kind that computes next to nothing: the host's work for a step does not depend on layers or widths."""
    with TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(json.loads(model.read_text()) | SMALL))
        return facts_of_config(config)


def main() -> None:
    """Prints the rows; the last one is an error alone where a user's setting or machine ended the part."""
    try:
        for row in rows(json.loads(sys.argv[1])):
            print(json.dumps(row), flush=True)
    except RidgelineError as error:
        print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
