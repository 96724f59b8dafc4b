"""Agents themselves, Codex and OpenCode: `python agents_client.py DEMO_URL SCRIPTED_URL`. Asserts, and prints what it used.

Each has the settings of docs/guide/agents.md, a home and a project of its own, and the task of its file in `bodies`, whose script the model
follows: it reads a file and mends it with the agent's own tools.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
GUIDE = (HERE.parents[1] / "docs" / "guide" / "agents.md").read_text()
AGENTS = {
    "opencode": ("project/opencode.json", ["opencode", "run", "Read greet.py and mend its greeting."], "The greeting is mended."),
    "codex": (
        "home/.codex/config.toml",
        ["codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "Open greet.py and fix the greeting."],
        "The greeting is fixed.",
    ),
}
"""Agent → file of its settings, command, and what the model says at the end."""


def main(_: str, scripted_url: str) -> None:
    used = []
    for agent, (file, command, answer) in AGENTS.items():
        program = HERE / "node_modules" / ".bin" / command[0]
        with tempfile.TemporaryDirectory() as folder:
            place, project = Path(folder) / file, Path(folder) / "project"
            project.mkdir()
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(settings(place.suffix[1:], scripted_url))
            (project / "greet.py").write_text("print('Helo')\n")
            environment = {**os.environ, "HOME": f"{folder}/home", "PWD": str(project), "OPENCODE_DISABLE_AUTOUPDATE": "1"}
            done = subprocess.run(
                [program, *command[1:]], cwd=project, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0 and answer in done.stdout, (agent, done.stdout[-2000:], done.stderr[-2000:])
            assert (project / "greet.py").read_text() == "print('Hello')\n", agent
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
        used.append(f"{agent} {version}")
    print(f"{', '.join(used)}: a file was read and mended, pass")


def settings(kind: str, scripted_url: str) -> str:
    """The guide's block of this kind, for the scripted model."""
    (text,) = re.findall(rf"^```{kind} \S+\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    text = text.replace("http://127.0.0.1:8000/v1", scripted_url).replace("qwen3:0.6b", "scripted")
    return text.replace("32768", "65536")  # its tokens are bytes


if __name__ == "__main__":
    main(*sys.argv[1:])
