"""A visit to a machine with a GPU, in parts of at most nine minutes each.

    python tests/gpu_visit/visit.py [PART …] [--out FOLDER] [--after FOLDER] [--minutes 9] [--dry-run]

Part 1: facts and ceilings of the machine, layers of real widths eager and as graphs, a first decode, the tests, one process a file. Part 2:
what failed again, kernel by kernel, profiles, the engine on the machine's processor. Part 3: the table of docs/gpu.md. Part 4, where time
is left: 500 random steps eager and as graphs, compute-sanitizer, other tiles, two minutes under load. Each step is a process with a limit
of its own, and the most telling steps come first, so that a visit that is cut short still has said most.

FOLDER (`$OUT`, or build/gpu; of a dry run build/gpu-dry) gets five small files: `steps.jsonl`, `rows.jsonl`, `log.txt`, `table.md` and
`failed.md`. Steps that they name as done are left out, so the same command goes on where another ended; --after names a folder with the
files of an earlier part, from another machine perhaps. --dry-run goes through everything on a machine without a GPU: kernels are
interpreted, and sizes are tiny.

Needs Python 3.12 with torch, triton, numpy, transformers, typer, rich, tokenizers and sentencepiece; what else is missing is taken from
build/gpu-wheels, where `make gpu-wheels` puts it on a machine with a network. Weights are random and made there.
"""

import os
import sys
from argparse import ArgumentParser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "compute/cuda"))

from steps import PARTS, make_steps
from table import write_table
from walk import Visit, walk
from wheels import use_wheels

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 9.0


def main(words: list[str] | None = None) -> int:
    """Walks through the parts; 1 where a step failed."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", type=int, metavar="PART", help="1, 2, 3, 4 [all]")
    parser.add_argument("--out", type=Path, help="folder of the files [$OUT, or build/gpu; of a dry run build/gpu-dry]")
    parser.add_argument("--after", type=Path, help="folder of the files of an earlier part")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of each part")
    parser.add_argument("--dry-run", action="store_true", help="interpreted, with tiny sizes")
    parser.add_argument("--only", help="steps whose names contain this word")
    given = parser.parse_args(words)
    if not {*given.parts} <= {*PARTS}:
        parser.error(f"the parts are {', '.join(map(str, PARTS))}, got {', '.join(map(str, given.parts))}")
    found = [
        str(ROOT / "tests/gpu_visit"),
        str(ROOT / "src"),
        *use_wheels(ROOT / "build/gpu-wheels", ROOT / "build/gpu-site"),
        os.environ.get("PYTHONPATH", ""),
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, found))
    if given.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    own = ROOT / ("build/gpu-dry" if given.dry_run else "build/gpu")  # a dry run's steps are no visit's
    visit = Visit(given.out or Path(os.environ.get("OUT") or own), given.after)
    for part in given.parts or PARTS:
        steps = make_steps(part, visit.rows, dry=given.dry_run)
        picked = [step for step in steps if not given.only or given.only in step.name]
        walk(visit, part, picked, 60 * given.minutes, write_table)
    return int(bool(visit.failures))


if __name__ == "__main__":
    sys.exit(main())
