"""The simulator finds every planted bug of `mutants/`, by a law that does not hold: this tests the laws."""

import inspect
import pkgutil
import runpy
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ridgeline.core
from ridgeline.core.drafts import model
from ridgeline.engine import engine
from ridgeline.sim.laws import drafting, executor, rows
from ridgeline.sim.laws.run import Violation
from ridgeline.sim.laws.swarm import run_seeds

MOST_STEPS = 40_000
FEW_STEPS = 1_000
SEEDS = {
    "the prefix key leaves the parent out": 5,
    "a prompt is scored again after a preemption": 78,
    "scores that a preempted sequence still had in flight are lost": 19,
    "min_tokens is looked at for a row, not for each of its ids": 18,
    "a NaN at a rejected position fails the row": 33,
    "ids before a NaN are lost": 79,
    "more is reserved than the worst case": 10,
    "who is late goes first, and makes others late": 39,
    "a long prompt is taken to need no time": 81,
    "a tenant that floods takes the slack of others": 141,
    "a request that can never fit is accepted": 14,
    "a preempted sequence keeps its place in the draft model": 135,
    "log-probabilities of ids behind the end shift those before": 18,
    "a slot is free as soon as its row is preempted": 16,
    "the draft model catches up over the budget": 8,
    "what the draft model computed behind a rejection stays": 8,
    "drafts of another row are held against the samples": 8,
    "a block of the draft model is freed twice": 8,
    "drafts sample beyond the rows of logits": 8,
}
"""Seeds whose worlds show what few others do; where one no longer does, the search from the first takes seconds."""
Edits = list[tuple[str, str, str]]
Function = Callable[..., Any]

CORE = [import_module(f"ridgeline.core.{each.name}") for each in pkgutil.iter_modules(ridgeline.core.__path__)]
MODULES = [*CORE, model, engine, executor, rows, drafting]
"""The simulated executor stands for whoever samples."""


def _bugs() -> dict[str, Edits]:
    bugs: dict[str, Edits] = {}
    for path in sorted(Path(__file__).with_name("mutants").glob("*.py")):
        for name, _, edits in runpy.run_path(str(path))["BUGS"]:
            assert name not in bugs
            bugs[name] = edits
    return bugs


def _functions(module: ModuleType) -> Iterator[tuple[Any, str, Function]]:
    """(owner, name, function) of everything that the module itself defines."""
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__:
            yield module, name, value
        elif inspect.isclass(value) and value.__module__ == module.__name__:
            for member_name, member in vars(value).items():
                function = member.fget if isinstance(member, property) else member
                is_own = inspect.isfunction(function) and function.__code__.co_filename == module.__file__
                if is_own and not hasattr(function, "__wrapped__"):  # what is wrapped may be made by a decorator, without a source
                    yield value, member_name, function


BUGS = _bugs()
SOURCES = [
    (owner, name, function, textwrap.dedent(inspect.getsource(function)))
    for module in MODULES
    for owner, name, function in _functions(module)
]


@contextmanager
def planted(edits: Edits) -> Iterator[None]:
    """The bug is in the real classes until the block ends."""
    with pytest.MonkeyPatch.context() as patch:
        for name, text, instead in edits:
            found = [each for each in SOURCES if each[1] == name and text in each[3]]
            assert len(found) == 1, f"{text!r} is in {len(found)} functions {name}: the planted bug needs a look"
            owner, _, function, source = found[0]
            assert source.count(text) == 1, f"{text!r} is {source.count(text)} times in {name}: the planted bug needs a look"
            scope: dict[str, Any] = {}
            exec(compile(source.replace(text, instead), f"<{name}>", "exec"), function.__globals__, scope)
            if isinstance(owner, ModuleType):  # whoever imported the function by name calls the wrong one too
                for module in MODULES:
                    if vars(module).get(name) is function:
                        patch.setattr(module, name, scope[name])
            else:
                patch.setattr(owner, name, scope[name])
        yield


def first_violation(max_steps: int, seed: int = 0) -> Violation | None:
    return next((outcome.violation for outcome in run_seeds(seed, 1, max_steps) if outcome.violation), None)


def test_there_are_enough() -> None:
    assert len(BUGS) >= 60


@pytest.mark.parametrize("name", BUGS)
def test_found_by_a_law(name: str) -> None:
    with planted(BUGS[name]):
        violation = first_violation(FEW_STEPS, SEEDS.get(name, 0)) or first_violation(MOST_STEPS)
    assert violation is not None, f"{MOST_STEPS} steps did not find it"
    assert violation.law, violation.message


def test_without_a_planted_bug_nothing_is_found() -> None:
    assert first_violation(2_000) is None
