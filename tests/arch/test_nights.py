"""No long test is forgotten: each has run since it was written, as tests/night.jsonl says, or is counted here."""

from pathlib import Path

from nights import night_tests, ran

MOST_THAT_NEVER_RAN = 32
"""Only shrinks."""

SOURCE = """
import pytest
MANY = pytest.param(1, marks=[pytest.mark.night])
@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.night)])
def machine(): ...
@pytest.mark.night
def test_marked(): ...
@pytest.mark.parametrize("n", [0, MANY])
def test_some_cases(n): ...
@pytest.fixture
def compiled(machine): ...
def test_through_fixtures(compiled): ...
def test_by_day(): ...
"""


def test_what_never_ran_is_known() -> None:
    never = set(night_tests()) - set(ran())
    assert len(never) <= MOST_THAT_NEVER_RAN, sorted(never)


def test_marks_are_found_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SOURCE)
    assert [name.partition("::")[2] for name in night_tests(tmp_path)] == ["test_marked", "test_some_cases", "test_through_fixtures"]


def test_the_last_run_counts(tmp_path: Path) -> None:
    record = tmp_path / "night.jsonl"
    record.write_text(
        '{"date": "2026-01-01", "night": {"a.py::test_x[1]": "failed after 1 s", "a.py::test_y": "passed after 1 s"}}\n'
        '{"date": "2026-01-02", "night": {"a.py::test_x[1]": "passed after 2 s"}}\n'
    )
    assert ran(record) == {
        "a.py::test_x": ("2026-01-02", {"a.py::test_x[1]": "passed after 2 s"}),
        "a.py::test_y": ("2026-01-01", {"a.py::test_y": "passed after 1 s"}),
    }
