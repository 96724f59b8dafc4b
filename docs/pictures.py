"""Pictures of the README, made of what really runs: `python docs/pictures.py MODEL` (an instruct model; chromium is needed).

The page is photographed with an answer of MODEL; `run` and `plan` are run, and what they print is drawn as SVG, without a font from
elsewhere.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "docs" / "pictures"
QUESTION: Final = "What is a tide? Answer in two sentences."
TERMINALS: Final = {
    "run": ("ridgeline run smollm2:135m", [QUESTION, "--max-tokens", "64", "--temperature", "0", "--verbose"]),
    "plan": ("ridgeline plan llama-3-8b --device h100 --users 32", []),
}
"""Name of a picture → the line that it shows, and further words."""
PLAN_LINES: Final = 44
FONT: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def terminal(name: str, model: str) -> None:
    """Draws one line and what it prints."""
    from rich.console import Console
    from rich.text import Text

    shown, more = TERMINALS[name]
    words = [model if word == "smollm2:135m" else word for word in shown.split()[1:]] + more
    command = [sys.executable, "-c", "from ridgeline.cli.main import main; main()", *words]
    settings = {**os.environ, "COLUMNS": "88"}
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=settings, check=True)
    told = [line for line in done.stderr.splitlines() if "tok" in line]
    console = Console(record=True, width=88, file=open(os.devnull, "w"))  # noqa: SIM115  (as long as the process)
    question = f' "{more[0]}"' if more else ""
    console.print(Text(f"$ {shown}{question}", style="bold"))
    console.print(Text("\n".join([*done.stdout.rstrip().splitlines()[:PLAN_LINES], *told])))
    (FOLDER / f"{name}.svg").write_text(FONT.sub("", console.export_svg(title="ridgeline")))


def page(model: str) -> None:
    """Asks on the page and photographs the answer."""
    for folder in ("tests/helpers", "src"):
        sys.path.insert(0, str(ROOT / folder))
    import pages
    import processes

    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    server = processes.ServerProcess([model, "--max-model-len", "2048", "--served-model-name", "smollm2:135m"], environment)
    try:
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
            processes.open_chromium(shutil.which("chromium") or "chromium-browser", Path(folder)) as port,
            processes.open_page(port) as browser,
        ):
            browser.resize(1000, 480)
            pages.visit(browser, server.url)
            pages.fill(browser, "temperature", "0")
            pages.chat(browser, QUESTION, 64)
            browser.screenshot(FOLDER / "page.png")
    finally:
        server.stop()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in TERMINALS:
        terminal(each, sys.argv[1])
    page(sys.argv[1])
