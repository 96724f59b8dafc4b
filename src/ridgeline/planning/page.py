"""The plan as one HTML page: a calculator with sliders and plots that needs no network. Also assembles the pages of other commands.

Owns the embedded data. The page computes with `page/formulas.js`, a copy of this package's functions; tests compare the two.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final

from ridgeline.facts.hardware.devices import DEVICES
from ridgeline.facts.headers.config_json import read_config
from ridgeline.facts.model import ModelFacts
from ridgeline.models.table import KNOWN, known_names
from ridgeline.planning.deployment import (
    ACTIVATION_BYTES,
    MAX_DEVICES,
    MAX_SEQUENCES,
    SCREEN_BITS,
    SCREENED_BITS,
    Deployment,
    automatic_layout,
)  # fmt: skip
from ridgeline.planning.formats import INT8_SCALE_BITS, KV_BITS, WEIGHT_FORMATS
from ridgeline.planning.objectives import Objective
from ridgeline.planning.speed import MAX_BATCH
from ridgeline.planning.step import MLA_EXPANSION_TOKENS, STATE_FLOPS

FOLDER: Final = files("ridgeline.planning") / "page"
"""Sources of the page; style and plots are shared with other pages."""


def plan_page(deployment: Deployment, objective: Objective, users_given: bool) -> str:
    """The calculator, opened at this deployment, as one HTML document."""
    scripts = [FOLDER / name for name in ("formulas.js", "plot.js", "calculator.js")]
    return document(FOLDER / "plan.html", scripts, page_data(deployment, objective, users_given))


def page_data(deployment: Deployment, objective: Objective, users_given: bool) -> dict[str, Any]:
    """Data of the calculator: models and devices, formats, constants, and the deployment it opens at."""
    model, device, layout = deployment.model, deployment.device, deployment.layout
    models = {name: read_config(KNOWN / f"{name}.json", name).facts for name in known_names()} | {model.name: model}
    automatic = layout == automatic_layout(model, layout.devices)
    fields = ("dtype", "kv_dtype", "context", "users", "utilisation", "chunk", "block_tokens")
    return {
        "models": {name: _model_data(each) for name, each in models.items()},
        "devices": {name: asdict(each) for name, each in (DEVICES | {device.name: device}).items()},
        "constants": {
            "WEIGHT_FORMATS": {name: asdict(form) for name, form in WEIGHT_FORMATS.items()},
            "KV_BITS": KV_BITS,
            "INT8_SCALE_BITS": INT8_SCALE_BITS,
            "SCREENED_BITS": SCREENED_BITS,
            "SCREEN_BITS": SCREEN_BITS,
            "ACTIVATION_BYTES": ACTIVATION_BYTES,
            "MAX_SEQUENCES": MAX_SEQUENCES,
            "STATE_FLOPS": STATE_FLOPS,
            "MLA_EXPANSION_TOKENS": MLA_EXPANSION_TOKENS,
            "MAX_BATCH": MAX_BATCH,
            "MAX_DEVICES": MAX_DEVICES,
        },
        "opened": {
            **{name: getattr(deployment, name) for name in fields},
            **asdict(deployment.workload),
            "model": model.name,
            "device": device.name,
            "count": layout.devices,
            "tensor": None if automatic else layout.tensor,
            "pipeline": 1 if automatic else layout.pipeline,
            "expert": 1 if automatic else layout.expert,
            "users_given": users_given,
        },
        "objective": asdict(objective),
    }


def _model_data(model: ModelFacts) -> dict[str, Any]:
    """The facts that the calculator's formulas need."""
    names = (
        "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "context", "layer_kinds", "window", "dtype", "format_name",
    )  # fmt: skip
    parts = {name: part and asdict(part) for name, part in (("widths", model.widths), ("experts", model.experts), ("state", model.state))}
    by_class = {name: dict(getattr(model, name)) for name in ("parameters", "stored", "packed")}
    return {**{name: getattr(model, name) for name in names}, **parts, **by_class}


def document(index: Traversable, scripts: Sequence[Traversable], data: Mapping[str, Any]) -> str:
    """Assembles one HTML document from `index`, the shared style, these scripts in order and `data` as JSON. It may load nothing."""
    style, codes = (FOLDER / "style.css").read_text(encoding="utf-8"), [script.read_text(encoding="utf-8") for script in scripts]
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {' '.join(map(_hash, codes))}"
    # An escaped "<" is the same JSON, and no name of a model can end the element.
    embedded = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    parts = {
        "<!--policy-->": f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        "<!--style-->": f"<style>{style}</style>",
        "<!--scripts-->": "\n".join(f"<script>{code}</script>" for code in codes),
        "<!--data-->": f'<script type="application/json" id="data">{embedded}</script>',
    }
    text = index.read_text(encoding="utf-8")
    for mark, part in parts.items():
        text = text.replace(mark, part, 1)
    return text


def _hash(text: str) -> str:
    """Hash of an element's content for the Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
