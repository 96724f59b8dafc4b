"""What README and guide say is so: N3, A6, A7, A8, the table of flags, what packages cost, the pictures."""

import re
import runpy
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

from ridgeline.cli.serve import serve
from ridgeline.config.foreign import FOREIGN
from ridgeline.config.values import flag_of

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
GUIDE = {path.name: path.read_text() for path in (ROOT / "docs" / "guide").glob("*.md")}
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def test_n2_the_readme_tells_how_to_get_a_trace_before_it_uses_one() -> None:
    places = [README.index(text) for text in ("--record day.recording", "replay day.recording --trace trace.jsonl", "whatif trace.jsonl")]
    assert places == sorted(places)


def test_n3_pages_with_the_official_client_say_that_it_is_installed_apart() -> None:
    told = {name: text for name, text in {"the first page": README, **GUIDE}.items() if "from openai import" in text}
    assert len(told) == 3 and all(text.index("pip install openai") < text.index("from openai import") for text in told.values())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not any(Requirement(each).name == "openai" for each in project["dependencies"])


def test_a6_who_promises_exactness_names_what_a_gpu_needs() -> None:
    (claim,) = re.findall(r"^- \*\*Exact\.\*\*(?:.*\n)(?:  .*\n)*", README, re.MULTILINE)
    assert "GPU" in claim and "`--batch-invariant`" in claim and "batch_invariant" in serve.__signature__.parameters


def test_a7_documents_point_to_dashboards_that_exist() -> None:
    named = {path for text in (README, *GUIDE.values()) for path in re.findall(r"`(deploy/[\w.-]+)`", text)}
    assert {"deploy/grafana.json", "deploy/prometheus.yml", "deploy/alerts.yml"} <= named
    assert all((ROOT / path).is_file() for path in named)
    assert "dashboard" not in (ROOT / "docs" / "physics.md").read_text()


def test_a8_the_tree_of_the_readme_is_the_tree() -> None:
    (tree,) = re.findall(r"^src/ridgeline/\n(?:.*\n)*?(?=```)", README, re.MULTILINE)
    inner = set(re.findall(r"^  ([\w.]+)", tree, re.MULTILINE))
    package = ROOT / "src" / "ridgeline"
    folders = {path.name for path in package.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert inner == folders | {"errors.py"}
    outer = set(re.findall(r"^(\w+)/", tree, re.MULTILINE)) - {"src"}
    assert outer == {"csrc", "tests", "docs", "deploy"}
    (listed,) = re.findall(r"^tests/ +folders like those of src, and (.*)", tree, re.MULTILINE)
    others = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name not in folders and any(path.iterdir())}
    assert set(listed.replace(" and", ",").split(", ")) == others - {"__pycache__"}


def test_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs" / "guide").glob("*.md")]
    for page in pages:
        for target, anchor in LINK.findall(page.read_text()):
            if target.startswith(("http:", "https:")):
                continue
            place = (page.parent / target).resolve() if target else page
            assert place.exists(), (page.name, target)
            if anchor:
                titles = [line.lstrip("# ").lower() for line in place.read_text().splitlines() if line.startswith("#")]
                assert anchor in {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}, (page.name, anchor)
    assert {name for name, _ in LINK.findall(GUIDE["README.md"]) if not name.startswith("..")} == GUIDE.keys() - {"README.md"}


def test_messages_that_the_guide_explains_are_those_of_the_program() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "src" / "ridgeline").rglob("*.py"))
    first = re.findall(r"^\| (.*?) \|", GUIDE["troubleshoot.md"], re.MULTILINE)
    told = [text for cell in first for text in re.findall(r"`([a-zA-Z][a-z_]+(?: [a-z' ]+)?)`", cell)]
    unknown = {text for text in told if text not in sources and text != "No such option"}  # that one is the parser's
    assert len(told) > 12 and not unknown


def test_the_table_of_flags_says_what_serve_does() -> None:
    """The long table is what the script makes; in the short one a foreign flag leads to the setting in the last column, or is ours."""
    assert runpy.run_path(str(ROOT / "docs" / "flags.py"))["page"]() == GUIDE["flags.md"], "run: python docs/flags.py"
    ours = {flag_of(name) for name in serve.__signature__.parameters} | {"--no-enable-prefix-caching"}
    meanings = {name: each for each in FOREIGN for name in each.names}
    short = GUIDE["flags.md"].partition("<!--")[0]
    rows = [line for line in short.splitlines() if line.startswith("| ") and not line.startswith("| to set")]
    assert len(rows) > 20
    for row in rows:
        *theirs, last = row.strip("| ").split(" | ")
        here = set(re.findall(r"`([^`]+)`", last))
        for flag in re.findall(r"`(-[^`]+)`", " ".join(theirs)):
            meaning = meanings.get(flag)
            if meaning is None:
                assert flag in ours and flag in here, flag
            elif meaning.ours:
                assert here & {flag_of(meaning.ours), "--no-" + flag_of(meaning.ours)[2:], meaning.ours.upper()}, (flag, here)
            else:
                assert any(word in meaning.advice for word in here), (flag, meaning.advice)
        assert all(name in ours for name in here if name.startswith("--")), here


def test_what_is_installed_is_listed_with_its_size() -> None:
    """Packages that Ridgeline needs, with what these need, are those of the table."""
    listed = set(re.findall(r"^\| ([a-z0-9-]+) \| [\d.]+ \| \w", GUIDE["install.md"], re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, open_ones = {"ridgeline"}, list(project["dependencies"])
    while open_ones:
        need = Requirement(open_ones.pop())
        name = need.name.lower().replace("_", "-")
        if name in found or (need.marker is not None and not need.marker.evaluate({"extra": ""})):
            continue
        try:
            open_ones += requires(name) or []
        except PackageNotFoundError:
            continue  # for another system or Python
        found.add(name)
    assert {"numpy", "llguidance", "pyyaml"} <= listed
    assert not found - listed, "make the table anew with docs/sizes.py"


def test_pictures_are_small_and_made_by_the_script() -> None:
    named = {path for _, path in re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", README)}
    pictures = {f"docs/pictures/{path.name}": path for path in (ROOT / "docs" / "pictures").iterdir()}
    assert named == pictures.keys() and sum(path.stat().st_size for path in pictures.values()) < 300_000
    script = (ROOT / "docs" / "pictures.py").read_text()
    assert all(f'"{path.stem}"' in script or path.name in script for path in pictures.values())
    drawn = [path.read_text() for path in pictures.values() if path.suffix == ".svg"]
    assert drawn and not any("@font-face" in text or "<script" in text for text in drawn)
