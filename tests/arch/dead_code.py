"""What nothing in the product uses: functions, classes, constants, methods, fields, parameters, words of a Literal, unreachable code.

`python tests/arch/dead_code.py` prints it; `test_dead_code.py` holds it at nothing. Tests do not count as users. Used are

- a name of a module that the module itself or an importer reads;
- a method, a field, an attribute whose name some file reads as an attribute;
- a parameter that its function reads, or another that is called in the same way (a row of the same table, a method of another class).

`ALLOWED` names what is used by somebody whom no source shows.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "ridgeline"
NATIVE = re.compile(
    r"\b(?:struct|class|using|constexpr [\w:<>]+|const [\w:<>]+\*?) (\w+)\s*(?:=|\{|\[)"
    r"|^[\w:<>*&, ]+?(?<!:)\b(?!operator)([a-z]\w+)\([^;{}]*\)[^;{}]*\{",
    re.MULTILINE,
)
"""In C++: what defines a type or a constant, and what defines a function."""
OWN_BASES = {"Struct", "Protocol", "NamedTuple", "Enum", "IntEnum", "StrEnum", "TypedDict", "Exception", "ValueError", "RuntimeError"}
"""Bases from outside that call nothing on their heirs; methods and values of a class with another base may be overrides."""

ALLOWED = {
    "bench/http.py:get_buffer(sizehint)": "asyncio calls it",
    "bench/report.py:LatencySummary.*": "written to the report as a whole",
    "bench/report.py:LoadReport.*": "written to the report as a whole",
    "cli/run.py:stop(frame)": "the signature of a signal's handler",
    "cli/ps.py:check_hostname": "read by ssl",
    "cli/ps.py:verify_mode": "read by ssl",
    "cli/sim.py:justify": "read by rich",
    "cli/main.py:__signature__": "read by typer",
    "cli/setting_flags.py:__*__": "read by typer",
    "router/front.py:Front.eof_received": "the event loop calls it",
    "compute/exact/threads.py:argtypes": "read by ctypes",
    "compute/exact/threads.py:restype": "read by ctypes",
    "compute/decoding/llguidance.py:argtypes": "read by ctypes",
    "compute/decoding/llguidance.py:restype": "read by ctypes",
    "compute/decoding/llguidance.py:atexit": "read by weakref",
    "compute/decoding/llguidance.py:log_stderr_level": "read by llguidance",
    "compute/decoding/llguidance.py:verbose_errors": "read by llguidance",
    "compute/decoding/llguidance.py:max_lexer_states": "read by llguidance",
    "compute/decoding/llguidance.py:step_lexer_fuel": "read by llguidance",
    "compute/decoding/llguidance.py:_MallocInfo (never made)": "the C library returns it",
    "facts/hardware/ceilings.py:argtypes": "read by ctypes",
    "compute/ops/definition.py:Definition.tolerance": "the tests of runners read it: how far a result may be from its reference",
    "compute/cpu/sampling.py:Prepared.arrays": "keeps alive what native code has the addresses of",
    "core/params.py:StructuredOutputs.*": "read by name, as kinds of grammars",
    "compute/decoding/sampler.py:sample_rows(maxima)": "the signature of the native sampler",
    "compute/runner.py:diff": "for whoever looks for the first op in which two runners differ, tests among them",
    "engine/llm.py:LLM.*": "for callers of LLM",
    "engine/pooled.py:EmbeddingOutput.embedding": "for callers of LLM",
    "engine/llm.py:__exit__(*)": "the signature of a context manager",
    "engine/outputs.py:Logprob.*": "for callers of LLM",
    "facts/hub/client.py:http_response(request)": "urllib calls it",
    "planning/report.py:*": "written to the report as a whole",
    "server/connection.py:send_400_response(msg)": "uvicorn calls it",
    "router/run.py:should_exit": "read by uvicorn",
    "router/upstream.py:Connection.on_header": "httptools calls it",
    "router/upstream.py:Connection.on_body": "httptools calls it",
    "server/connection.py:disconnected": "read by uvicorn",
    "server/listener.py:Listener.wait_closed": "uvicorn calls it",
    "server/http_server.py:HttpServer.capture_signals": "uvicorn calls it",
    "server/*:should_exit": "read by uvicorn",
    "server/signals.py:timeout_graceful_shutdown": "read by uvicorn",
    "server/signals.py:should_exit": "read by uvicorn",
    "server/vector_shapes.py:*": "fields that clients read",
    "server/vllm_shapes.py:*": "fields that clients read",
    "server/wire.py:*": "fields that clients send",
    "server/replies.py:*": "fields that clients read",
    "server/admin_shapes.py:*": "fields that clients read",
    "server/live_shapes.py:*": "fields that clients read",
    "observe/verdict.py:Lever.figure": "written to `GET /live` as a whole",
    "server/explain_shapes.py:*": "fields that clients read",
    "server/anthropic.py:*": "fields that clients read",
    "server/ggml_shapes.py:*": "fields that clients read",
    "server/ollama_shapes.py:*": "fields that clients read",
    "server/responses_shapes.py:*": "fields that clients read",
    "sim/fleet/measures.py:*": "written to the report as a whole",
    "sim/laws/oracle.py:logprobs(index)": "sources of answers in tests read it",
    "text/chat_sandbox.py:deny(args)": "jinja2 calls it",
}
"""Pattern of `path:name` → its user."""


@dataclass(frozen=True, order=True)
class Finding:
    """`name` is qualified in its file: `Class.method`, `function(parameter)`."""

    path: str
    line: int
    kind: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.path}:{self.name}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind} {self.name}"


class Module:
    """One file: its tree and what it reads."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path.relative_to(root).as_posix()
        self.dotted = f"{root.name}." + self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.tree = ast.parse(path.read_text())
        self.nodes = list(ast.walk(self.tree))
        self.names = reads_of_names(self.nodes)
        self.attributes = Counter(reads_of_attributes(self.nodes))
        self.imports = {(n.module, alias.name) for n in self.nodes if isinstance(n, ast.ImportFrom) and n.module for alias in n.names}
        self.functions = [node for node in self.nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        self.classes = [node for node in self.nodes if isinstance(node, ast.ClassDef)]


class Tree:
    """All modules of a package, and what they read together."""

    def __init__(self, root: Path) -> None:
        self.modules = [Module(path, root) for path in sorted(root.rglob("*.py"))]
        self.reads = sum((module.attributes for module in self.modules), Counter[str]())
        self.classes = {owner.name for module in self.modules for owner in module.classes}
        texts = [n.value for module in self.modules for n in module.nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        self.texts = Counter(text for text in texts if len(text) < 80)
        self.values = {name for module in self.modules for name in values_of(module)}
        self.listed = Counter(word for module in self.modules for node in module.nodes for word in literal_words(node))
        self.made = {name for module in self.modules for node in module.nodes for name in classes_made(node)}

    def started_by_name(self, module: Module) -> bool:
        """A string holds its dotted name, or the part of it in front of what is filled in."""
        heads = (text for text in self.texts if text.startswith("ridgeline.") and text.endswith((".", "_")))
        return module.dotted in self.texts or any(module.dotted.startswith(head) for head in heads)


def reads_of_names(nodes: list[ast.AST]) -> Counter[str]:
    return Counter(n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store))


def reads_of_attributes(nodes: list[ast.AST]) -> Iterator[str]:
    """Names of attributes that are read, in patterns and in calls of getattr too."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.MatchClass):
            yield from node.kwd_attrs
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr", "attrgetter"):
            yield from (each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str))


def values_of(module: Module) -> Iterator[str]:
    """Names that are passed on or stored, not only called: their signature is another's matter."""
    called = {id(node.func) for node in module.nodes if isinstance(node, ast.Call)}
    for node in module.nodes:
        if id(node) not in called and isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            yield node.id if isinstance(node, ast.Name) else node.attr


def names_of_modules(module: Module, tree: Tree) -> Iterator[Finding]:
    """Functions, classes and constants of a module that neither it nor another reads."""
    others = [other for other in tree.modules if other is not module]
    imported = {name for other in others for origin, name in other.imports if origin == module.dotted}
    named = tree.started_by_name(module)
    whole = [other for other in others if named or tuple(module.dotted.rsplit(".", 1)) in other.imports]
    for node in module.tree.body:
        inside = reads_of_names(list(ast.walk(node)))
        for name, kind in defined_by(node):
            read = module.names[name] > inside[name] or name in imported or any(other.attributes[name] for other in whole)
            if not read and not name.startswith("__") and not (named and name in tree.texts):
                yield Finding(module.path, node.lineno, kind, name)


def defined_by(node: ast.stmt) -> list[tuple[str, str]]:
    """(name, kind) of what a statement of a module defines; a decorator that is called has a use for its function."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return [] if any(isinstance(each, ast.Call) for each in node.decorator_list) else [(node.name, "function")]
    if isinstance(node, ast.ClassDef):
        return [(node.name, "class")]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [(n.id, "constant") for each in targets for n in ast.walk(each) if isinstance(n, ast.Name)]
    return []


def members_of_classes(module: Module, tree: Tree) -> Iterator[Finding]:
    """Methods, fields and values whose name is nowhere read as an attribute, but for a method's own body."""
    for owner in module.classes:
        bases = [base.value if isinstance(base, ast.Subscript) else base for base in owner.bases]
        overrides = not {ast.unparse(base).rpartition(".")[2] for base in bases} <= tree.classes | OWN_BASES
        for node in owner.body:
            own = 0
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not overrides:
                name, kind, own = node.name, "method", Counter(reads_of_attributes(list(ast.walk(node))))[node.name]
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name, kind = node.target.id, "field"
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and not overrides:
                name, kind = node.targets[0].id, "value"
            else:
                continue
            if tree.reads[name] <= own and not name.startswith("__"):
                yield Finding(module.path, node.lineno, kind, f"{owner.name}.{name}")


def classes_made(node: ast.AST) -> Iterator[str]:
    """Names that are called, raised, inherited from, asked for a member, types of fields, or handed on (to a decoder, a table)."""
    if isinstance(node, ast.ClassDef):
        types = (each for field in node.body if isinstance(field, ast.AnnAssign) for each in ast.walk(field.annotation))
        parts = [*node.bases, *node.decorator_list, *types]
    elif isinstance(node, (ast.Attribute, ast.Raise)):
        parts = [node.value if isinstance(node, ast.Attribute) else node.exc]
    elif isinstance(node, ast.Call):
        asks = isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass", "cast")
        parts = [node.func] if asks else [node.func, *node.args, *(each.value for each in node.keywords)]
    elif isinstance(node, (ast.Dict, ast.List, ast.Tuple, ast.Return)):
        parts = [*node.values] if isinstance(node, ast.Dict) else [node.value] if isinstance(node, ast.Return) else node.elts
    else:
        return
    for part in parts:
        while isinstance(part, ast.Subscript):
            part = part.slice
        for each in ast.walk(part) if isinstance(part, (ast.Tuple, ast.BinOp, ast.IfExp)) else [part]:
            if isinstance(each, (ast.Name, ast.Attribute)):
                yield each.id if isinstance(each, ast.Name) else each.attr


def classes_nobody_makes(module: Module, tree: Tree) -> Iterator[Finding]:
    """Classes that are matched and annotated, and of which no object ever is."""
    for owner in module.classes:
        types = {base.id for base in owner.bases if isinstance(base, ast.Name)}
        if owner.name not in tree.made and owner.name not in tree.texts and not types & {"Protocol", "TypedDict"}:
            yield Finding(module.path, owner.lineno, "class", f"{owner.name} (never made)")


def stored_attributes(module: Module, tree: Tree) -> Iterator[Finding]:
    """Attributes that are set and nowhere read."""
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not tree.reads[node.attr]:
            yield Finding(module.path, node.lineno, "attribute", node.attr)


def parameters(tree: Tree) -> Iterator[Finding]:
    """Parameters that neither their function reads nor another that is called in the same way."""
    methods = {id(node) for module in tree.modules for owner in module.classes for node in owner.body}
    unread: list[tuple[Finding, str, str]] = []
    read_by: Counter[tuple[str, str]] = Counter()
    for module in tree.modules:
        for node in module.functions:
            arguments = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            read = reads_of_names(list(ast.walk(node)))
            way = node.name if id(node) in methods else "" if node.name in tree.values else f"{module.path}:{node.name}"
            for name in arguments:
                if read[name] or read["locals"]:
                    read_by[way, name] += 1
                elif name not in ("self", "cls") and not name.startswith("_") and not is_stub(node):
                    unread.append((Finding(module.path, node.lineno, "parameter", f"{node.name}({name})"), way, name))
    yield from (found for found, way, name in unread if not read_by[way, name])


def is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    body = [each for each in node.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    return all(isinstance(each, (ast.Pass, ast.Raise)) for each in body)


def words_of_literals(module: Module, tree: Tree) -> Iterator[Finding]:
    """Words of a Literal type that are spoken nowhere else."""
    for node in module.nodes:
        for word in literal_words(node):
            if tree.texts[word] <= tree.listed[word]:
                yield Finding(module.path, getattr(node, "lineno", 0), "word", repr(word))


def literal_words(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
        return [each.value for each in ast.walk(node.slice) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return []


def unreachable(module: Module) -> Iterator[Finding]:
    """Statements behind one that leaves."""
    for node in module.nodes:
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            for here, behind in pairwise(block) if isinstance(block, list) else ():
                if isinstance(here, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
                    yield Finding(module.path, behind.lineno, "unreachable", "code")


def native(root: Path) -> Iterator[Finding]:
    """Functions, constants and types of csrc whose name stands nowhere else in it, nor in Python."""
    texts = {path: re.sub(r"//.*", "", path.read_text()) for path in sorted(root.rglob("*")) if path.suffix in (".cpp", ".h", ".def")}
    words = Counter(word for text in texts.values() for word in re.findall(r"\w+", text))
    spoken = {word for path in SOURCE.rglob("*.py") for word in re.findall(r"\w+", path.read_text())}
    for path, text in texts.items():
        for found in NATIVE.finditer(text):
            name = next(filter(None, found.groups()))
            if words[name] == 1 and name not in spoken:
                yield Finding(f"csrc/{path.relative_to(root).as_posix()}", text[: found.start()].count("\n") + 1, "native", name)


def findings(root: Path = SOURCE) -> list[Finding]:
    tree = Tree(root)
    found = list(parameters(tree))
    for module in tree.modules:
        for kind in (names_of_modules, members_of_classes, stored_attributes, classes_nobody_makes, words_of_literals):
            found += kind(module, tree)
        found += unreachable(module)
    if root == SOURCE:
        found += native(SOURCE.parents[1] / "csrc")
    return sorted(set(found))


def unused(found: list[Finding]) -> list[Finding]:
    """What is not allowed."""
    return [each for each in found if not any(fnmatch(each.key, pattern) for pattern in ALLOWED)]


if __name__ == "__main__":
    print("\n".join(map(str, unused(findings()))))
