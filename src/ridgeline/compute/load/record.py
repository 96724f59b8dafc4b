"""Op lists of an architecture, by its name: records what the module of `ridgeline.models` with that name declares."""

from importlib import import_module
from importlib.util import find_spec

from ridgeline.compute.graph import OpList, Recorder, Weights
from ridgeline.compute.ops.table import OPS
from ridgeline.errors import ModelFormatError
from ridgeline.facts.model import ModelFacts

RESULTS = {"step": "logits"}
"""The lists that a model may record, each a function of its module, and the name of what it returns."""


def record(facts: ModelFacts) -> dict[str, OpList]:
    """The op lists of a model, by name. Raises ModelFormatError where the architecture has no module."""
    name = f"ridgeline.models.{facts.architecture}"
    if not facts.architecture.isidentifier() or find_spec(name) is None:
        raise ModelFormatError(f"there is no implementation of the architecture {facts.architecture!r}")
    module = import_module(name)
    weights = Weights({tensor.name: tensor.shape for tensor in facts.tensors.values()})
    lists: dict[str, OpList] = {}
    for kind, result in RESULTS.items():
        if hasattr(module, kind):
            g = Recorder(OPS)
            lists[kind] = g.finish(kind, **{result: getattr(module, kind)(g, facts, weights)})
    return lists
