"""Tests make tensors where kernels run: on a GPU one that stands elsewhere ends a test before its kernel."""

import ast
from pathlib import Path

HERE = Path(__file__).parent
FACTORIES = {
    "arange", "empty", "eye", "full", "linspace", "logspace", "normal", "ones", "rand", "randint", "randn", "randperm", "tensor", "zeros",
}  # fmt: skip
ELSEWHERE = ("compile_only.py", "compiled_*.py")
"""Modules that a GPU does not run."""


def without_a_device(source: str) -> list[int]:
    """Lines that call a factory of torch and do not say where."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and node.func.attr in FACTORIES
        and "device" not in {keyword.arg for keyword in node.keywords}
    ]


def test_every_tensor_says_where_it_lives() -> None:
    found = {path.name: without_a_device(path.read_text()) for path in HERE.glob("*.py") if not any(map(path.match, ELSEWHERE))}
    assert not {name: lines for name, lines in found.items() if lines}


def test_one_that_does_not_is_found() -> None:
    assert without_a_device("x = torch.arange(3)\ny = torch.zeros(2, device=DEVICE)\n") == [1]
