"""What of docs/guide needs packages of others: `python guide_client.py DEMO_URL SCRIPTED_URL`. Asserts, and prints what it ran.

Runs the blocks marked `py` with the demo, and installs what lines `pip install …` beside them name. The rest is run by
tests/e2e/test_docs_commands.py.
"""

import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"
BLOCK = re.compile(r"^```(\S+)(?: \S+)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALL = re.compile(r"^pip install ([a-z][\w-]*(?: [a-z][\w-]*)*)$", re.MULTILINE)


def main(demo_url: str, _: str) -> None:
    ran, installed = 0, 0
    for page in sorted(GUIDE.glob("*.md")):
        blocks = BLOCK.findall(page.read_text())
        for kind, text in blocks:
            for packages in INSTALL.findall(text) if kind == "console" else ():
                subprocess.run([sys.executable, "-m", "pip", "install", "-q", *packages.split()], check=True)
                installed += 1
            if kind == "py":
                text = text.replace("http://127.0.0.1:8000/v1", demo_url)
                done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)
                assert done.returncode == 0 and done.stdout.strip(), (page, done.stderr)
                ran += 1
    assert ran and installed
    print(f"docs/guide: {ran} blocks run, {installed} lines of pip: pass")


if __name__ == "__main__":
    main(*sys.argv[1:])
