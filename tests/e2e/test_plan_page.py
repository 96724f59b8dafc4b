"""The planner's page in a real browser: it computes what Python computes, its sliders move the numbers, it asks nobody for anything."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ridgeline.facts.hardware.devices import DEVICES
from ridgeline.facts.headers.config_json import read_config
from ridgeline.facts.model import ModelFacts
from ridgeline.models.table import KNOWN, known_names
from ridgeline.planning.arguments import PlanOptions, deployment_of
from ridgeline.planning.deployment import Deployment, Layout, Workload, automatic_layout
from ridgeline.planning.formats import KV_BITS, WEIGHT_FORMATS
from ridgeline.planning.objectives import Objective
from ridgeline.planning.page import plan_page
from ridgeline.planning.report import make_report
from ridgeline.planning.speed import batch_point

POINTS = 250
SHAPES = [read_config(KNOWN / f"{name}.json", name).facts for name in known_names()]
EIGHT = read_config(KNOWN / "llama-3-8b.json", "llama-3-8b").facts
COMPARED = (
    "fits", "memory_bytes", "weights_bytes", "kv_bytes_per_token", "kv_bytes_per_sequence",
    "state_bytes_per_sequence", "activation_bytes",
    "untiled_activation_bytes", "overhead_bytes", "reserve_bytes", "kv_budget_bytes", "shortfall_bytes", "max_sequences",
    "max_context_tokens", "prefill_intensity", "decode_intensity", "ridge_intensity", "bound_by", "decode_floor_seconds",
    "prefill_floor_seconds", "prefill_seconds", "knee_batch", "recommended_batch", "limited_by", "objective_met", "tokens_per_second",
    "cost_per_million_tokens", "min_devices",
)  # fmt: skip
COMPUTE = """
POINTS.map(({ model, device, layout, objective, users_given, batch, ...rest }) => {

  const facts = DATA.models[model];
  const chosen = { ...DATA.devices[device.name], ...device };
  const d = { ...rest, model: facts, layout: layout ?? automatic_layout(facts, rest.count), device: chosen };
  return { layout: d.layout, point: batch_point(d, batch), ...make_report(d, objective, users_given) };
})
"""


def random_layout(random: Random, model: ModelFacts, count: int) -> Layout | None:
    """None: automatic."""
    if random.random() < 0.6:
        return None
    tensor = random.choice([width for width in range(1, 17) if model.heads % width == 0])
    expert = random.choice((1, 2, 8)) if model.experts else 1
    return Layout(tensor, random.randint(1, min(4, model.layers)), expert, random.randint(1, 3))


def random_deployment(random: Random) -> Deployment:
    model, count = random.choice(SHAPES), random.choice((1, 1, 2, 3, 4, 6, 8, 12, 16, 24, 64))
    device = random.choice(list(DEVICES.values()))
    if random.random() < 0.5:
        device = replace(
            device, memory_bytes=random.randint(8, 800) * 10**9, bytes_per_second=device.bytes_per_second * random.uniform(0.3, 3)
        )
    context = random.randint(2, model.context) if random.random() < 0.3 else random.randint(2, min(model.context, 9000))
    prompt = random.randint(1, context - 1)
    return Deployment(
        model=model,
        device=device,
        layout=random_layout(random, model, count) or automatic_layout(model, count),
        dtype=random.choice([None, *WEIGHT_FORMATS]),
        kv_dtype=random.choice(list(KV_BITS)),
        context=context,
        users=random.choice((1, random.randint(1, 64), random.randint(1, 5000))),
        workload=Workload(prompt, random.randint(1, context - prompt), random.choice((0.0, random.uniform(0, 0.99)))),
        utilisation=random.uniform(0.3, 1.0),
        chunk=random.choice((1, 100, 512, 2048, 8192)),
        block_tokens=random.choice((1, 16, 32)),
    )


def as_point(deployment: Deployment, objective: Objective, users_given: bool, batch: int, automatic: bool) -> dict[str, Any]:
    """What JavaScript gets."""
    layout, device, load = deployment.layout, deployment.device, deployment.workload
    names = ("dtype", "kv_dtype", "context", "users", "utilisation", "chunk", "block_tokens")
    return {
        **{name: getattr(deployment, name) for name in names},
        "model": deployment.model.name,
        "device": {"name": device.name, "memory_bytes": device.memory_bytes, "bytes_per_second": device.bytes_per_second},
        "count": layout.devices,
        "layout": None if automatic else {name: getattr(layout, name) for name in ("tensor", "pipeline", "expert", "replicas")},
        "workload": {"prompt": load.prompt, "output": load.output, "reused": load.reused},
        "objective": {"ttft": objective.ttft, "itl": objective.itl},
        "users_given": users_given,
        "batch": batch,
    }


def same(expected: Any, found: Any) -> bool:
    """Integers and words equal, floats to 1e-9 of their size."""
    return bool(found == pytest.approx(expected, rel=1e-9, abs=0.0)) if isinstance(expected, float) else expected == found


@pytest.fixture
def plan(tmp_path: Path, browser: Any) -> Any:
    """The page of 8 B parameters on an H100, open."""
    deployment = deployment_of(EIGHT, PlanOptions(device="h100", users=32))
    (tmp_path / "plan.html").write_text(plan_page(deployment, Objective(), users_given=True), encoding="utf-8")
    browser.resize(1280, 900)
    browser.open((tmp_path / "plan.html").as_uri())
    return browser


def move(browser: Any, slider: str, steps: int) -> None:
    script = f"(e => {{ e.value = e.valueAsNumber + {steps}; e.dispatchEvent(new Event('input')); }})(document.getElementById('{slider}'))"
    browser.value(script)


def choose(browser: Any, name: str, value: str) -> None:
    browser.value(f"(e => {{ e.value = {value!r}; e.dispatchEvent(new Event('change')); }})(document.getElementById('{name}'))")


def figure(browser: Any, name: str) -> str:
    return browser.value(f"document.querySelector('[data-name={name}]').dataset.value")


def test_it_computes_what_python_computes(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.planning.report.levers", lambda *_: [])
    monkeypatch.setattr("ridgeline.planning.report.scaling", lambda *_: [])
    random, points, expected = Random(5), [], []
    for _ in range(POINTS):
        deployment, batch, given = random_deployment(random), random.randint(1, 5000), random.random() < 0.3
        objective = random.choice((Objective(), Objective(), Objective(2.0, 0.05), Objective(itl=0.02), Objective(ttft=1.0)))
        report = make_report(deployment, objective, given, None).as_dict()
        layout = {name: report["layout"][name] for name in ("tensor", "pipeline", "expert", "replicas")}
        point = batch_point(deployment, batch)
        expected.append({name: report[name] for name in COMPARED} | {"layout": layout, "point": point})
        automatic = deployment.layout == automatic_layout(deployment.model, deployment.layout.devices)
        points.append(as_point(deployment, objective, given, batch, automatic))
    found = plan.value(COMPUTE.replace("POINTS", json.dumps(points), 1))
    assert len(found) == POINTS
    for asked, wanted, got in zip(points, expected, found, strict=True):
        point, other = wanted.pop("point"), got.pop("point")
        wrong = {name: (value, got[name]) for name, value in wanted.items() if not same(value, got[name])}
        wrong |= {name: (getattr(point, name), other[name]) for name in other if not same(getattr(point, name), other[name])}
        assert not wrong, (wrong, asked)
    for name, least in (("fits", 2), ("bound_by", 3), ("limited_by", 4), ("objective_met", 3), ("knee_batch", 20), ("min_devices", 10)):
        assert len({each[name] for each in expected}) >= least, f"the points tell little about {name}"


def test_opens_with_the_numbers_of_the_command(plan: Any) -> None:
    deployment = deployment_of(EIGHT, PlanOptions(device="h100", users=32))
    report = make_report(deployment, Objective(), True, None)
    shown = dict(plan.value("[...document.querySelectorAll('[data-name]')].map(e => [e.dataset.name, e.dataset.value])"))
    assert len(shown) == 17
    for name, text in shown.items():
        value = getattr(report, name)
        assert text == value if isinstance(value, str) else float(text) == pytest.approx(value, rel=1e-9), name
    assert "It fits: 32 users of 4,096 tokens" in plan.value("document.getElementById('verdict').textContent")


MOVES = [
    ("dtype", 5, "weights_bytes"), ("kv_dtype", 3, "kv_bytes_per_token"), ("memory_bytes", -8, "max_sequences"),
    ("bytes_per_second", 3, "decode_floor_seconds"), ("context", -4, "kv_bytes_per_sequence"), ("prompt", -4, "prefill_intensity"),
    ("output", -6, "tokens_per_second"), ("users", 4, "recommended_batch"), ("count", 3, "max_sequences"),
    ("tensor", 2, "decode_floor_seconds"),
]  # fmt: skip
"""Slider, by so many places, a figure that must change."""
DRAWN = "[...document.querySelectorAll('svg')].map(each => each.outerHTML).join()"


def test_sliders_move_the_numbers(plan: Any) -> None:
    assert {slider for slider, _, _ in MOVES} == set(plan.value("SLIDERS.map(each => each.name)"))
    for slider, steps, changed in MOVES:
        before, said = figure(plan, changed), plan.value(f"document.getElementById('{slider}').getAttribute('aria-valuetext')")
        drawn = plan.value(DRAWN)
        move(plan, slider, steps)
        assert figure(plan, changed) != before, slider
        assert plan.value(DRAWN) != drawn, slider
        now = plan.value(f"document.getElementById('{slider}').getAttribute('aria-valuetext')")
        assert now != said and now == plan.value(f"document.getElementById('{slider}-shown').textContent")
    assert plan.problems == []


def test_models_devices_and_widths(plan: Any) -> None:
    choose(plan, "model", "llama-3-70b")
    assert "does not fit" in plan.value("document.getElementById('verdict').textContent")
    assert plan.value("document.getElementById('verdict').className") == "bad"
    assert "nothing runs" in plan.value("document.getElementById('figures').textContent")
    move(plan, "count", 3)
    move(plan, "tensor", 3)
    assert plan.value("JSON.stringify(layout())") == '{"tensor":4,"pipeline":1,"expert":1,"replicas":1}'
    assert "It fits" in plan.value("document.getElementById('verdict').textContent")
    move(plan, "count", -1)
    assert plan.value("state.tensor") is None, "three devices cannot be cut in four"
    for model in plan.value("Object.keys(DATA.models)"):
        choose(plan, "model", model)
        for device in ("b200", "m4", "xeon-8480"):
            choose(plan, "device", device)
            assert "NaN" not in plan.value("document.querySelector('main').innerHTML"), (model, device)
    choose(plan, "model", "gpt2")
    assert plan.value("state.context") == 1024 and plan.value("state.prompt + state.output") == 1024
    move(plan, "prompt", 99)
    assert plan.value("[state.prompt, state.output, state.context]") == [1023, 1, 1024]
    assert plan.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_and_asks_nobody(plan: Any, tmp_path: Path, theme: str) -> None:
    plan.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    for width, height in ((390, 844), (1280, 900)):
        plan.resize(width, height)
        plan.wait(f"innerWidth === {width} && Number(document.querySelector('#roofline svg').viewBox.baseVal.width) < {width}")
        assert plan.value("document.documentElement.scrollWidth") <= width
        boxes = "[...document.querySelectorAll('svg text')].map(e => [e.textContent, e.getBoundingClientRect()])"
        assert plan.value(f"{boxes}.filter(([, b]) => b.left < 0 || b.right > innerWidth).map(([text]) => text)") == []
        plan.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000
    ground = plan.value("getComputedStyle(document.body).backgroundColor")
    plan.value("document.getElementById('theme').click()")
    assert plan.value("getComputedStyle(document.body).backgroundColor") != ground
    named = "e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim()"
    assert plan.value(f"[...document.querySelectorAll('input, select, button, svg')].filter(e => !({named})).map(e => e.outerHTML)") == []
    assert plan.requests and all(each.startswith("file://") for each in plan.requests)
    assert plan.problems == []


def test_the_policy_lets_nothing_in(plan: Any) -> None:
    plan.value("document.body.insertAdjacentHTML('beforeend', '<img src=http://203.0.113.1/x>')")
    plan.value("const s = document.createElement('script'); s.textContent = 'window.broken = 1'; document.body.append(s)")
    plan.value("fetch('http://203.0.113.1/').catch(() => { window.refused = true; })")
    plan.wait("window.refused")
    assert plan.value("window.broken") is None
    assert sum("Content Security Policy" in each for each in plan.problems) >= 3
