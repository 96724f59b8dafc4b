"""Long tests are found wherever their mark stands, and what tests/night.jsonl says of them is read right."""

from pathlib import Path

from nights import night_tests, ran

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


def test_every_long_test_is_listed() -> None:
    """With the date of its last run, or "never"; `pytest -s` shows the list."""
    listed = night_tests()
    assert len(listed) > 25 and len(set(listed)) == len(listed)
    never = [name for name in listed if name not in ran()]
    print(f"{len(never)} of {len(listed)} long tests never ran since tests/night.jsonl begins:", *never, sep="\n  ")


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
