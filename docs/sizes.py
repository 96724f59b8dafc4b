"""Table of what an installation brings, in docs/guide/install.md: `CLEAN/bin/python docs/sizes.py` writes it anew.

CLEAN is a virtual environment into which nothing but a wheel of Ridgeline was installed. Sizes are those of the files that packages list,
compiled modules included, in MB of a million bytes.
"""

from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parent / "guide" / "install.md"
FIRST, LAST = "<!-- sizes -->\n", "<!-- end of sizes -->\n"
NOT_OURS: Final = ("pip", "setuptools")
"""What a virtual environment has before anything is installed."""
WHY: Final = {
    "annotated-doc": "for typer", "anyio": "for starlette", "click": "for uvicorn", "filelock": "for huggingface-hub",
    "fsspec": "for huggingface-hub", "h11": "for uvicorn", "hf-xet": "for huggingface-hub", "httpcore2": "for httpx2",
    "httptools": "parses HTTP", "httpx2": "for huggingface-hub", "huggingface-hub": "for tokenizers", "idna": "for anyio",
    "jinja2": "chat templates", "llguidance": "structured outputs", "markdown-it-py": "for rich", "markupsafe": "for jinja2",
    "mdurl": "for markdown-it-py", "msgspec": "JSON and messages between processes", "numpy": "arithmetic",
    "packaging": "for huggingface-hub", "prometheus-client": "metrics", "pygments": "for rich", "pyyaml": "files of settings",
    "rich": "tables", "ridgeline": "itself", "sentencepiece": "tokenizers of some models", "shellingham": "for typer",
    "starlette": "routes", "tokenizers": "tokenizers", "tqdm": "for huggingface-hub", "truststore": "for httpx2", "typer": "command line",
    "typing-extensions": "for several", "uvicorn": "HTTP", "uvloop": "event loop",
}  # fmt: skip


def installed() -> dict[str, float]:
    """MB by name of each package of this environment, largest first."""
    found = {each.metadata["Name"].lower().replace("_", "-"): sum(_bytes(each)) / 1e6 for each in distributions()}
    return dict(sorted(((name, size) for name, size in found.items() if name not in NOT_OURS), key=lambda each: -each[1]))


def _bytes(package: Distribution) -> Iterator[int]:
    for file in package.files or ():
        place = Path(str(package.locate_file(file)))
        if place.is_file():
            yield place.stat().st_size


def table(sizes: dict[str, float]) -> str:
    """Markdown, with the sum."""
    rows = [f"| {name} | {size:.1f} | {WHY[name]} |" for name, size in sizes.items()]
    return "\n".join(["| package | MB | for |", "|---|---|---|", *rows, f"| **all** | **{sum(sizes.values()):.0f}** | |"]) + "\n"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(FIRST)
    PAGE.write_text(before + FIRST + "\n" + table(installed()) + "\n" + LAST + rest.partition(LAST)[2])
