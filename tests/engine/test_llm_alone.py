"""The offline `LLM` needs nothing that a server needs: it loads where msgspec, starlette and uvicorn are not installed."""

import os
import subprocess
import sys

CODE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"msgspec", "starlette", "uvicorn", "uvloop", "httptools"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import ridgeline
llm = ridgeline.LLM
import ridgeline.compute.runtime.worker
try:
    import ridgeline.engine.messages
except ModuleNotFoundError as missing:
    print(llm.__name__, missing.name)
"""


def test_llm_loads_without_the_packages_of_a_server() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "LLM msgspec\n", done.stderr
