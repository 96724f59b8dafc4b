"""Structured outputs: what compiles them, and what follows their grammars over bytes; real templates."""

from collections.abc import Iterator

import pytest
from byte_grammars import byte_compiler
from chat_cases import Corpus, corpus

from ridgeline.compute.decoding.grammar import GrammarCompiler
from ridgeline.text.structured import StructuredOutputCompiler


@pytest.fixture(scope="session")
def compiler() -> Iterator[StructuredOutputCompiler]:
    made = StructuredOutputCompiler()
    yield made
    made.close()


@pytest.fixture(scope="session")
def matching() -> Iterator[GrammarCompiler]:
    made = byte_compiler()
    yield made
    made.close()


@pytest.fixture(scope="session")
def real() -> Iterator[Corpus]:
    with corpus() as found:
        yield found
