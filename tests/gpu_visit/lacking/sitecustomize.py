"""Makes a process like one on the machine of a visit: LACKING names packages that neither it nor the wheels have; none can be imported."""

import os
import sys
from types import ModuleType

LACKING = frozenset(os.environ.get("LACKING", "").split(","))


class Lacking:
    """Finds nothing else."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: ModuleType | None = None) -> None:
        if name.partition(".")[0] in LACKING:
            raise ModuleNotFoundError(f"No module named {name!r}: a visit has none", name=name)


sys.meta_path.insert(0, Lacking())  # type: ignore[arg-type]
