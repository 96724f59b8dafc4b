"""Where `--html` and `--json` write. Owns the file and what is said about it; what is on a page is decided elsewhere."""

import sys
from pathlib import Path

from ridgeline.errors import ConfigError


def check_page(path: Path | None, flag: str = "--html") -> None:
    """Opened before anything long begins: what cannot be written to is told at once. Raises ConfigError."""
    try:
        if path is not None:
            path.expanduser().open("a").close()
    except OSError as error:
        raise ConfigError(f"{flag} {str(path)!r:.200} cannot be written: {error.strerror}", fix={flag: f"page.{flag[2:]}"}) from error


def write_page(path: Path, document: str) -> None:
    """Writes the document and says so on stderr. Raises ConfigError where the file cannot be written."""
    check_page(path)
    path.expanduser().write_text(document, encoding="utf-8")
    print(f"{path} written, {len(document.encode()) / 1e3:.0f} kB", file=sys.stderr)
