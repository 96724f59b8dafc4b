"""Completion in a real bash: verbs, and the flags of a verb that nobody has loaded yet."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()"
BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="bash is not installed")


@pytest.fixture(scope="module")
def shell(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where `ridgeline` is a command, and home a place that may be written to."""
    home = tmp_path_factory.mktemp("home")
    command = home / "bin" / "ridgeline"
    command.parent.mkdir()
    command.write_text(f'#!{BASH}\nexec {sys.executable} -c "{PROGRAM}" "$@"\n')
    command.chmod(0o755)
    return {**environment, "PATH": f"{command.parent}:{environment['PATH']}", "HOME": str(home), "SHELL": str(BASH)}


def bash(script: str, environment: dict[str, str]) -> str:
    done = subprocess.run([str(BASH), "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def completions(line: str, environment: dict[str, str]) -> list[str]:
    """What bash offers at the end of `line`, by the script that `--show-completion` prints."""
    words = line.split(" ")
    script = f"""
        source <(ridgeline --show-completion)
        function=$(complete -p ridgeline | sed -E 's/.*-F ([^ ]+) .*/\\1/')
        COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDS=({" ".join(f"'{word}'" for word in words)}) COMP_CWORD={len(words) - 1}
        $function ridgeline '{words[-1]}' '{words[-2]}'
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return bash(script, environment).split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ridgeline ser", {"serve"}),
        ("ridgeline ", {"serve", "run", "generate", "plan", "doctor"}),
        ("ridgeline serve --max", {"--max-model-len", "--max-num-seqs", "--max-num-batched-tokens"}),
        ("ridgeline generate --", {"--input", "--output", "--temperature", "--best-of"}),
        ("ridgeline run demo --sys", {"--system"}),
    ],
)
def test_bash_completes(shell: dict[str, str], line: str, expected: set[str]) -> None:
    found = set(completions(line, shell))
    assert expected <= found
    assert all(each.startswith(line.split(" ")[-1]) for each in found)


def test_completion_is_installed_at_home(shell: dict[str, str]) -> None:
    bash("ridgeline --install-completion; exit $?", shell)  # bash stays the parent, by which the shell is known
    home = Path(shell["HOME"])
    assert "ridgeline" in (home / ".bashrc").read_text()
    assert "_RIDGELINE_COMPLETE" in (home / ".bash_completions" / "ridgeline.sh").read_text()
