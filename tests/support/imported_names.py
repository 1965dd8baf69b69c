# SPDX-License-Identifier: Apache-2.0
"""The names that a Python file imports, in every spelling."""

import ast
from collections.abc import Iterator

PACKAGE = "reverb"
LOADERS = {
    *("importlib.import_module", "importlib.__import__", "builtins.__import__", "__import__"),
    "reverb.adapters.library.imported",
}


def imported_names(source: str) -> Iterator[str]:
    """Yields the absolute names of all that a source imports, also inside its functions.

    `from reverb import x` may name a module, `from reverb.x import Y` a class. `reverb.x.Y` after
    `import reverb` is an import as well, and so is `x.Y` after `from reverb import x`.
    """
    nodes = list(ast.walk(ast.parse(source)))
    bound: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
                # `import a.b` binds `a`, and `import a.b as c` binds `a.b`.
                first = alias.name.split(".")[0]
                bound[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: the import is relative"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    if PACKAGE in bound.values():
        yield PACKAGE
    for node in nodes:
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            if f"{bound.get(first)}.".startswith(f"{PACKAGE}.") and "(" not in rest:
                yield f"{bound[first]}.{rest}"
        elif isinstance(node, ast.Call):
            first, dot, rest = ast.unparse(node.func).partition(".")
            if bound.get(first, first) + dot + rest in LOADERS:
                yield loaded_module(node)


def loaded_module(call: ast.Call) -> str:
    """The module that a call loads, as far as the text shows it; else it may be any of ours."""
    argument = call.args[0] if call.args else call.keywords[0].value
    if isinstance(argument, ast.JoinedStr):
        argument = argument.values[0]
    is_text = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    return argument.value.rstrip(".") if is_text else PACKAGE
