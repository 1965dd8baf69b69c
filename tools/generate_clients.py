# SPDX-License-Identifier: Apache-2.0
"""Writes the methods that both clients have: `make clients`. With `--check` it only compares.

The text of each stands once, in `reverb/_client/*calls.py`, in the form for the blocking client. It
is copied into `reverb/client.py` unchanged, and into `reverb/aio/client.py` by these rules:

* `self._client.NAME(...)` is awaited if `native.AsyncClient` has that method, and `self.NAME(...)`
  if it is a coroutine of `reverb.aio.Client`.
* A function that awaits is a coroutine.
* Examples are left out, and `WORDS` are replaced.

Code that only one client needs stands in its file by hand, outside of the marked part. The imports
of the texts are added to both files, and ruff removes those that a file does not need.
"""

import ast
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "reverb"
TEXTS = [
    PACKAGE / "_client" / f"{name}.py"
    for name in (
        "data_calls",
        "sample_calls",
        "item_calls",
        "rollout_calls",
        "writer_calls",
        "calls",
    )
]
BLOCKING = PACKAGE / "client.py"
AWAITED = PACKAGE / "aio" / "client.py"
STUB = PACKAGE / "core" / "_native.pyi"

BEGIN = "    # --- generated from reverb/_client/*calls.py by `make clients` ---\n"
END = "    # --- end of generated code ---\n"

# Words of the texts, and their replacements in the twin. A word that no text has is an error.
WORDS = {
    "contextlib.contextmanager": "contextlib.asynccontextmanager",
    "-> Iterator[Any]:": "-> SampleIterator[Any]:",
    "-> Iterator[ReplaySample]:": "-> SampleIterator[ReplaySample]:",
    "-> Iterator[list[ReplaySample]]:": "-> SampleIterator[list[ReplaySample]]:",
    "-> Iterator[tuple[float, ReplaySample]]:": "-> SampleIterator[tuple[float, ReplaySample]]:",
    "-> Iterator[None]:": "-> AsyncIterator[None]:",
    "-> Iterator[OpenItem]:": "-> AsyncIterator[OpenItem]:",
    "    ) -> TrajectoryWriter:": "    ) -> OpeningWriter[TrajectoryWriter]:",
    "    ) -> BatchedTrajectoryWriter:": "    ) -> OpeningWriter[BatchedTrajectoryWriter]:",
    "    ) -> SequenceWriter:": "    ) -> OpeningWriter[SequenceWriter]:",
    "Blocks ": "Waits ",
    "Does not block": "Does not wait",
    "Ctrl-C ends": "Cancelling ends",
    "Ctrl-C or": "a cancellation or",
    "for a `with` block": "for an `async with` block",
    "(`KeyboardInterrupt` included)": "(`CancelledError` included)",
}
# The same for imports.
IMPORTS = {
    "collections.abc import Callable, Iterator": "collections.abc import AsyncIterator, Callable",
    "reverb._client.batch_sampler": "reverb.aio.batch_sampler",
    "reverb._writers.sequence import SequenceWriter, sequence_options": (
        "reverb._writers.sequence import sequence_options\n"
        "from reverb.aio.sequence_writer import SequenceWriter"
    ),
    "reverb.trajectory_writer": "reverb.aio.trajectory_writer",
}


def main() -> None:
    """Writes both files, or compares them."""
    for path, text in clients().items():
        if text == path.read_text(encoding="utf-8"):
            continue
        if "--check" in sys.argv:
            raise SystemExit(f"{path.relative_to(ROOT)} is not as `make clients` writes it")
        path.write_text(text, encoding="utf-8")


def clients() -> dict[pathlib.Path, str]:
    """Returns what each file should be."""
    imports, methods = zip(*map(parts_of, TEXTS), strict=True)
    header, body = "".join(imports), "\n".join(methods)
    return {
        BLOCKING: generated(BLOCKING, header, body),
        AWAITED: generated(AWAITED, exchanged(header, IMPORTS), exchanged(awaited(body), WORDS)),
    }


def parts_of(path: pathlib.Path) -> tuple[str, str]:
    """Returns the imports of a text, and the methods of its class."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    nodes = ast.parse(text).body
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    (methods,) = (node for node in nodes if isinstance(node, ast.ClassDef))
    header = "".join("".join(lines[node.lineno - 1 : node.end_lineno]) for node in imports)
    return header, "".join(lines[methods.lineno :])


def parted(path: pathlib.Path) -> tuple[str, str, str]:
    """Returns what stands before the marked part of a file, the part, and what stands after it."""
    before, rest = path.read_text(encoding="utf-8").split(BEGIN)
    marked, after = rest.split(END)
    return before, marked, after


def generated(path: pathlib.Path, imports: str, methods: str) -> str:
    """Returns a file with another marked part, and with the imports that it needs."""
    before, _, after = parted(path)
    lines = before.splitlines(keepends=True)
    docstring = ast.parse(before).body[0].end_lineno
    before = "".join([*lines[:docstring], imports, *lines[docstring:]])
    text = f"{before}{BEGIN}\n{methods}\n{END}{after}"
    text = ruff(path, text, "check", "--quiet", "--fix-only", "--select=I001,F401,F811")
    return ruff(path, text, "format", "--quiet")


def ruff(path: pathlib.Path, text: str, *arguments: str) -> str:
    """Returns a text as ruff would leave it in a file."""
    command = [sys.executable, "-m", "ruff", *arguments, f"--stdin-filename={path}", "-"]
    done = subprocess.run(
        command, cwd=ROOT, input=text, text=True, stdout=subprocess.PIPE, check=True
    )
    return done.stdout


def exchanged(text: str, words: dict[str, str]) -> str:
    """Returns a text with other words."""
    for word, other in words.items():
        if word not in text:
            raise SystemExit(f"{__file__}: no text has {word!r}; take it out of the table")
        text = text.replace(word, other)
    return text


def awaited(methods: str) -> str:
    """Returns methods that await what the blocking ones wait for, without examples."""
    examples = r"^ {8}Example:\n(?: {10}.*\n|\n)*"
    source = "class Client:\n" + re.sub(examples, "", methods, flags=re.MULTILINE)
    before, _, after = parted(AWAITED)
    by_hand = methods_of(before + after, "Client")
    coroutines = {it.name for it in by_hand if isinstance(it, ast.AsyncFunctionDef)}
    native = {it.name for it in methods_of(STUB.read_text(encoding="utf-8"), "AsyncClient")}
    found = coroutines
    while True:
        waits = Waits(found, native)
        waits.visit(ast.parse(source))
        if waits.coroutines == found:
            return applied(source, waits.edits).removeprefix("class Client:\n")
        found = waits.coroutines


def methods_of(text: str, name: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Returns the methods of a class."""
    (cls,) = (it for it in ast.parse(text).body if isinstance(it, ast.ClassDef) and it.name == name)
    return [it for it in cls.body if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef)]


class Waits(ast.NodeVisitor):
    """Finds the calls that the twin awaits.

    Attributes:
      coroutines: Names of methods that are coroutines: the given ones, and those that call them.
      edits: Line, column, old text and new text of each place that changes.
    """

    def __init__(self, coroutines: set[str], native: set[str]) -> None:
        """Takes the names of known coroutines, and of the methods of `native.AsyncClient`."""
        self.coroutines = set(coroutines)
        self.edits: list[tuple[int, int, str, str]] = []
        self._known = coroutines
        self._native = native
        self._functions: list[ast.FunctionDef] = []
        self._waiting: set[ast.FunctionDef] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Looks at a method, or at a function inside of one."""
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()
        if node in self._waiting:
            self.edits.append((node.lineno, node.col_offset, "def ", "async def "))
            if not self._functions:
                self.coroutines.add(node.name)

    def visit_Call(self, node: ast.Call) -> None:
        """Looks at a call."""
        self.generic_visit(node)
        _, _, name = ast.unparse(node.func).rpartition(".")
        place = (node.lineno, node.col_offset)
        if self._calls_core(node):
            new = f"await self._call(_Core.{name}" + (", " if node.args else "")
            self.edits.append((*place, f"self._client.{name}(", new))
        elif self._calls_coroutine(node):
            self.edits.append((*place, "", "await "))
        else:
            return
        self._waiting.add(self._functions[-1])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Refuses an attribute of something awaited, which would need parentheses."""
        self.generic_visit(node)
        call = node.value
        if isinstance(call, ast.Call) and (self._calls_core(call) or self._calls_coroutine(call)):
            raise SystemExit(f"give {ast.unparse(call)} a name before its {node.attr} is used")

    def _calls_core(self, node: ast.Call) -> bool:
        target, _, name = ast.unparse(node.func).rpartition(".")
        return target == "self._client" and name in self._native

    def _calls_coroutine(self, node: ast.Call) -> bool:
        target, _, name = ast.unparse(node.func).rpartition(".")
        return target == "self" and name in self._known


def applied(source: str, edits: list[tuple[int, int, str, str]]) -> str:
    """Returns a text with its changes."""
    lines = source.splitlines(keepends=True)
    for line, column, old, new in sorted(edits, reverse=True):
        text = lines[line - 1]
        if not text.startswith(old, column):
            raise SystemExit(f"write {old!r} in one line: {text.strip()}")
        lines[line - 1] = text[:column] + new + text[column + len(old) :]
    return "".join(lines)


if __name__ == "__main__":
    main()
