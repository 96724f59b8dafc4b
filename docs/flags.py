"""Table of other servers' flags in docs/guide/flags.md, made of what `serve` reads: `python docs/flags.py` writes it anew."""

from pathlib import Path
from typing import Final

from ridgeline.config.foreign import ANY, FOREIGN, Foreign
from ridgeline.config.values import flag_of

PAGE: Final = Path(__file__).parent / "guide" / "flags.md"
MARK: Final = "<!-- flags -->\n"


def table() -> str:
    """One line per flag, by what is to be done with it."""
    lines = ["| flag | here |", "|---|---|"]
    return "\n".join([*lines, *(f"| {', '.join(f'`{name}`' for name in each.names)} | {_here(each)} |" for each in FOREIGN)]) + "\n"


def page() -> str:
    """The page with its table up to date."""
    return PAGE.read_text().partition(MARK)[0] + MARK + "\n" + table()


def _here(each: Foreign) -> str:
    if each.ours:
        value = each.values.get("true", "") if each.switch else ""
        return "`MODEL`" if each.ours == "model" else f"`--no-{flag_of(each.ours)[2:]}`" if value == "false" else f"`{flag_of(each.ours)}`"
    if each.harmless == ANY:
        return f"no effect: {each.advice}"
    allowed = [value for value in each.harmless if value]
    return (f"only {', '.join(f'`{value}`' for value in allowed[:4])}: " if allowed else "refused: ") + each.advice


if __name__ == "__main__":
    PAGE.write_text(page())
