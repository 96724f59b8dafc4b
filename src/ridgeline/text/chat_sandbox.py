"""The process that renders one model's chat templates: `python -m ridgeline.text.chat_sandbox FD`. Started by `chat_process`.

A chat template is untrusted code. Owns the environment that transformers gives to templates (Jinja, trimmed blocks, loop controls,
`raise_exception`, `strftime_now`, `tojson` that escapes no HTML), the limits that work inside an interpreter, and the
limits that the operating system sets on the process: memory, files, processes, time. Answers each frame with one frame
until the other end closes: conversations with as many answers, none of them more than a text.
"""

import json
import re
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import jinja2.debug  # noqa: F401  (jinja2 imports it at the first error; once sealed, nothing can be imported)
from jinja2 import TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ridgeline.text.sandbox_frames import frame, receive, send

MAX_TEXT: Final = 1 << 20
"""Characters of a rendered prompt, and of any string or list that a template makes by multiplication."""
MAX_EXPONENT: Final = 64

_HARMLESS = frozenset({"builtins.id", "object.__getattr__"})
"""Audited by Python, and needed by `json` to indent and by Jinja's macros. What attributes a template may read, the sandbox decides."""


class TemplateRefusal(TemplateError):
    """The template rejected the conversation, by `raise_exception`."""


class LimitExceeded(Exception):
    """The template exceeded one of its limits; the text says which."""


class Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which a product or a power cannot grow without bounds either."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`left * right` or `left ** right`; raises `LimitExceeded` where the result would be large."""
        if operator == "**":
            if not (isinstance(left, (int, float)) and isinstance(right, (int, float)) and abs(right) <= MAX_EXPONENT):
                raise LimitExceeded(f"raises to a power above {MAX_EXPONENT}")
        else:
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, Sequence) and isinstance(times, int) and len(sequence) * times > MAX_TEXT:
                    raise LimitExceeded(f"makes a sequence of more than {MAX_TEXT} items")
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """An attribute that the sandbox hides is an error at once, not an undefined value that renders as nothing."""
        raise SecurityError(f"the attribute {attribute!r} of a {type(obj).__name__} may not be read by templates")


class Generation(Extension):
    """`{% generation %} … {% endgeneration %}` marks the assistant's text for training; here the body alone counts."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """See `jinja2.ext.Extension.parse`. A call block, as in transformers, so that names set inside stay inside."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @staticmethod
    def _body(caller: Macro) -> str:
        return caller()


class PlainNamespace(Namespace):
    """`namespace(…)` without names that begin with an underscore."""

    def __init__(*args: Any, **values: Any) -> None:
        self, *rest = args
        given = dict(*rest, **values)
        for name in given:
            _check_name(name)
        Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


class Sandbox:
    """The compiled templates of one model. Raises what Jinja raises where one of them does not compile."""

    def __init__(self, templates: Mapping[str, str], mask: str) -> None:
        """`mask` is the character that `tojson` never escapes: the tokenizer has to find it."""
        self._now = datetime.min
        self._environment = _environment(lambda form: self._now.strftime(form), mask)
        self._templates = {name: self._environment.from_string(text) for name, text in templates.items()}
        known = set(self._environment.globals)
        read = set().union(*(meta.find_undeclared_variables(self._environment.parse(text)) for text in templates.values()))
        self.variables: tuple[str, ...] = tuple(sorted(read - known))
        """Names that the templates read and that nothing but the render call sets."""

    def render(self, template: str, variables: Mapping[str, Any], now: Sequence[int]) -> str:
        """The prompt. `now` is the local time that the template may ask for: year, month, day, hour, minute, second.

        Raises `TemplateRefusal`, `LimitExceeded`, and whatever else a template can do wrong.
        """
        self._now = datetime(*now)  # type: ignore[arg-type]
        compiled = self._templates[template]
        pieces, length = [], 0
        # Not `render`: it rewrites tracebacks by compiling code, which is sealed off.
        for piece in compiled.root_render_func(compiled.new_context(dict(variables))):
            pieces.append(piece)
            length += len(piece)
            if length > MAX_TEXT:
                raise LimitExceeded(f"writes more than {MAX_TEXT} characters")
        return "".join(pieces)


def seal() -> None:
    """Seals the process: from now on whatever Python audits (opening a file, importing, compiling, starting a process, sockets …) fails."""

    def deny(event: str, args: tuple[object, ...]) -> None:
        if event not in _HARMLESS:
            raise SecurityError(f"a chat template may not do this ({event})")

    sys.addaudithook(deny)


def _environment(strftime_now: Callable[[str], str], mask: str) -> Environment:
    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = _to_json(mask)
    environment.globals.update(raise_exception=_raise_exception, strftime_now=strftime_now, dict=_Dict(), namespace=PlainNamespace)
    del environment.globals["lipsum"]  # random text has no place in a prompt
    return environment


class _Dict:
    """`dict(…)` and `dict.fromkeys(…)` without the class behind them."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace holds no name that begins with an underscore ({name!r})")


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message))


def _to_json(mask: str) -> Callable[..., str]:
    not_ascii = re.compile(f"[^\x00-\x7f{mask}]")

    def to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
        return not_ascii.sub(lambda match: json.dumps(match[0])[1:-1], text) if ensure_ascii else text

    return to_json


MEMORY_BYTES: Final = 256 << 20
"""Address space in addition to what the interpreter has at its start."""
ORPHAN_SECONDS: Final = 4.0
"""Renders that take this long have no parent any more (which kills far earlier): the kernel ends this process."""
MAX_MESSAGE: Final = 2_000


def main(descriptor: int) -> None:
    """Compiles the templates of the first frame, answers, seals the process and renders."""
    stream = socket.socket(fileno=descriptor)
    first = receive(stream)
    if first is None:
        return
    _limit_memory()
    signal.setitimer(signal.ITIMER_REAL, 3 * ORPHAN_SECONDS)
    try:
        sandbox = Sandbox(first["templates"], first["mask"])
    except Exception as error:
        send(stream, frame({"failed": _describe_error(error)}))
        return
    send(stream, frame({"variables": sandbox.variables}))
    _drop_privileges()
    while True:
        signal.setitimer(signal.ITIMER_REAL, 0)
        request = receive(stream)
        if request is None:
            return
        signal.setitimer(signal.ITIMER_REAL, ORPHAN_SECONDS)
        send(stream, frame({"answers": [_render(sandbox, each) for each in request["asked"]]}))


def _render(sandbox: Sandbox, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request. A template may raise any exception, hence the last clause."""
    try:
        return {"text": sandbox.render(request["template"], request["variables"], request["now"])}
    except TemplateRefusal as error:
        return {"rejected": str(error.message)[:MAX_MESSAGE]}
    except LimitExceeded as error:
        return {"exceeded": str(error)}
    except MemoryError:
        return {"exceeded": f"needs more than {MEMORY_BYTES >> 20} MiB of memory"}
    except RecursionError:
        return {"exceeded": "calls itself too deeply"}
    except Exception as error:
        return {"failed": _describe_error(error)}


def _describe_error(error: BaseException) -> str:
    line = getattr(error, "lineno", None)
    place = f" (line {line})" if isinstance(line, int) else ""
    return f"{type(error).__name__}: {str(error)[:MAX_MESSAGE]}{place}"


def _drop_privileges() -> None:
    """Forbids files, processes and core dumps by resource limits, and whatever Python audits."""
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))
    seal()


def _limit_memory() -> None:
    """Limits the address space; only on Linux, elsewhere the time limit bounds memory."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main(int(sys.argv[1]))
