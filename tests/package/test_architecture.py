# SPDX-License-Identifier: Apache-2.0
"""Allowed dependencies and rooms of tests; ARCHITECTURE.md and tests/README.md have the reasons."""

import ast
import builtins
import functools
import json
import pathlib
import pkgutil
import re
import shutil
import subprocess
import sys
import types

import pytest

import reverb
from support.imported_names import imported_names

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "reverb"
TESTS = ROOT / "tests"
# Other interpreters run these as scripts, so they find their modules themselves.
SCRIPTS = [TESTS / "conformance" / name for name in ("peer_programs", "differential")]

# Every arrow between crates that is allowed; one that is not used is a fault.
CRATES = {
    "reverb-base": set(),
    "reverb-allocator": set(),
    "reverb-auth": {"reverb-base", "reverb-data"},
    "reverb-data": {"reverb-base"},
    "reverb-engine": {"reverb-base", "reverb-data"},
    "reverb-files": {"reverb-base"},
    "reverb-store": {"reverb-base", "reverb-data", "reverb-files"},
    "reverb-tls": {"reverb-base"},
    "reverb-http": {"reverb-tls"},
    "reverb-log": {"reverb-base"},
    "reverb-rpc": {"reverb-base", "reverb-tls"},
    "reverb-wire": {"reverb-base", "reverb-data", "reverb-rpc"},
    "reverb-checkpoint": {
        "reverb-base",
        "reverb-data",
        "reverb-engine",
        "reverb-files",
        "reverb-wire",
    },
    "reverb-server": {
        "reverb-auth",
        "reverb-base",
        "reverb-checkpoint",
        "reverb-data",
        "reverb-engine",
        "reverb-files",
        "reverb-http",
        "reverb-rpc",
        "reverb-store",
        "reverb-tls",
        "reverb-wire",
    },
    "reverb-client": {"reverb-base", "reverb-data", "reverb-wire"},
    "reverb-shards": {"reverb-base", "reverb-data", "reverb-wire"},
    "reverb-bindings": {
        "reverb-allocator",
        "reverb-auth",
        "reverb-base",
        "reverb-checkpoint",
        "reverb-client",
        "reverb-data",
        "reverb-engine",
        "reverb-files",
        "reverb-log",
        "reverb-rpc",
        "reverb-server",
        "reverb-shards",
        "reverb-store",
        "reverb-tf",
        "reverb-tls",
        "reverb-wire",
    },
    "reverb-tf": {"reverb-base", "reverb-client", "reverb-data", "reverb-wire"},
    "reverb-ops-shim": set(),
    "regenerate-protos": set(),
    "round-trip-floor": set(),
}
# Crates that a crate must not depend on directly.
_HTTP = {"h2", "http", "hyper", "socket2", "tonic"}
_PYTHON = {"pyo3", "numpy"}
FOREIGN_CRATES = {
    "reverb-allocator": set(),
    "reverb-auth": {"prost", "tokio"} | _HTTP | _PYTHON,
    "reverb-base": {"prost", "tokio"} | _HTTP | _PYTHON,
    "reverb-data": {"prost", "tokio"} | _HTTP | _PYTHON,
    "reverb-engine": {"prost"} | _HTTP | _PYTHON,
    "reverb-files": {"prost", "tokio"} | _HTTP | _PYTHON,
    "reverb-http": {"h2", "prost"} | _PYTHON,
    "reverb-log": {"prost", "tokio"} | _HTTP | _PYTHON,
    "reverb-rpc": _PYTHON,
    "reverb-store": {"prost", "tokio"} | _HTTP | _PYTHON,
    "reverb-tls": {"prost"} | _HTTP | _PYTHON,
    "reverb-wire": _HTTP | _PYTHON,
    "reverb-checkpoint": _HTTP | _PYTHON,
    "reverb-server": _HTTP | _PYTHON,
    "reverb-client": _HTTP | _PYTHON,
    "reverb-shards": _HTTP | _PYTHON,
    "reverb-tf": _HTTP | _PYTHON,
}

# Words that are absent from a crate, because the head of its `lib.rs` says so.
_SOCKETS = ("std::net", "tokio::net", "std::os::unix::net")
_WAITS = (".await", "thread::sleep", "Condvar", "block_on")
CLAIMS = {
    "base": ("thread::spawn", "thread::Builder", *_SOCKETS),
    "data": ("std::fs", *_SOCKETS, *_WAITS),
    "engine": ("std::fs", "File::", *_SOCKETS),
    "log": ("pyo3", "Python<"),
    "wire": _SOCKETS,
}

# Python modules from the bottom up: a module may import from rows above its own, and from its row.
LAYERS = [
    {"errors", "shown_text", "replay_sample", "schedules"},
    {"core"},
    {"_checks"},
    {"specs", "_nests", "logging"},
    {
        "item_selectors",
        "rate_limiters",
        "reverb_types",
        "server_status",
        "_status",
        "_rollouts",
        "_checkpoints",
        "pybind",
        "libpybind",
        "cc",
        "checkpointers",
    },
    {"_client", "_server", "_writers", "trajectory_writer"},
    {"structured_writer"},
    # `Client.batches` makes an iterator of `_batches`, which samples with a client.
    {"client", "_batches"},
    {"aio", "_recording"},
    {"tf_ops"},
    {"tf_client", "trajectory_dataset", "timestep_dataset", "pattern_dataset"},
    {"server", "cluster", "datasets"},
    {"testing", "server_executable"},
    {"platform"},
    {""},  # The package itself.
    {"adapters", "command"},
    {"__main__"},
]


def layer_of(module):
    """The row of a module, given as a tuple of its names below `reverb`."""
    name = module[0] if module else ""
    rows = [row for row, names in enumerate(LAYERS) if name in names]
    assert rows, f"reverb.{name} has no place in the table of layers"
    return rows[0]


def python_files():
    return sorted(PACKAGE.rglob("*.py"))


def python_files_of_tests():
    return [path for path in TESTS.rglob("*.py") if not set(SCRIPTS) & set(path.parents)]


def module_name(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


@functools.cache
def imports(path):
    return list(imported_names(path.read_text(encoding="utf-8")))


def reverb_imports(path):
    """The modules of this package that a file imports, as tuples of names below `reverb`."""
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "reverb":
            while parts and not (
                PACKAGE.joinpath(*parts[1:]).is_dir()
                or PACKAGE.joinpath(*parts[1:]).with_suffix(".py").exists()
                or PACKAGE.joinpath(*parts[1:]).with_suffix(".pyi").exists()
            ):
                parts.pop()
            yield tuple(parts[1:])


@pytest.fixture(scope="module")
def crates():
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not on the path")
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--offline"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        package["name"]: {
            dependency["name"]
            for dependency in package["dependencies"]
            if dependency["kind"] is None  # Tests may use more.
        }
        for package in json.loads(result.stdout)["packages"]
    }


# Lines that annotate with `Any`, outside of the code that speaks to untyped libraries. It switches
# the type checker off: `object` is for what is only passed on or checked by isinstance.
MOST_LINES_WITH_ANY = 304
# Public names for any nest; the first two are dm-reverb's.
NAMES_OF_ANY = {"Pattern", "ReferenceStep", "SpecNest"}


def test_no_more_lines_are_annotated_with_any():
    typed = [it for it in python_files() if not {"adapters", "tf_ops"} & set(it.parts)]
    lines = [line for path in typed for line in path.read_text(encoding="utf-8").splitlines()]
    assert sum(bool(re.search(": Any|-> Any", line)) for line in lines) <= MOST_LINES_WITH_ANY
    names = [re.fullmatch(r"(\w+)(: TypeAlias)? = Any", line) for line in lines]
    assert {name[1] for name in names if name} == NAMES_OF_ANY


def test_every_crate_is_in_the_table(crates):
    assert set(crates) == set(CRATES)


@pytest.mark.parametrize("crate", CRATES)
def test_crates_know_only_who_they_may(crates, crate):
    ours = {name for name in crates[crate] if name.startswith("reverb-")}
    assert ours == CRATES[crate]


@pytest.mark.parametrize("crate", FOREIGN_CRATES)
def test_crates_leave_other_worlds_alone(crates, crate):
    assert crates[crate].isdisjoint(FOREIGN_CRATES[crate])


@pytest.mark.parametrize("crate", CLAIMS)
def test_a_crate_does_what_its_head_claims(crate):
    for path in (PACKAGE / "core" / crate / "src").rglob("*.rs"):
        code = path.read_text().split("#[cfg(test)]")[0]
        found = [word for word in CLAIMS[crate] if word in code]
        assert not found or "tests" in path.name, (path, found)


def test_what_observes_a_server_knows_no_service():
    folder = PACKAGE / "core" / "server" / "src"
    for path in (folder / "observe.rs", *(folder / "observe").rglob("*.rs")):
        used = set(re.findall(r"\bcrate::(\w+)", path.read_text()))
        assert used <= {"observe"}, path


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_python_modules_know_only_who_they_may(path):
    module = module_name(path)
    if not module:
        return
    too_high = {
        ".".join(("reverb", *imported))
        for imported in reverb_imports(path)
        if layer_of(imported) > layer_of(module)
    }
    # It imports other libraries, by names that its callers know.
    assert too_high == ({"reverb"} if module == ("datasets", "library") else set())


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import reverb", ""),
        ("import reverb as r", ""),
        ("import reverb.core", ""),
        ("import reverb.server as s", "server"),
        ("from reverb import server", "server"),
        ("from reverb import Server", ""),
        ("from reverb import structured", ""),
        ("from reverb import *", ""),
        ("from reverb.server import Server", "server"),
        ("from reverb import adapters\nadapters.torch.loader.Loader()", "adapters.torch.loader"),
        ("import reverb as r\nr.server.Server([]).stop()", "server"),
        ("def f():\n  import reverb", ""),
        ("import importlib\nimportlib.import_module('reverb.server')", "server"),
        ("from importlib import import_module as f\nf(name='reverb.server')", "server"),
        ("import importlib as i\ni.import_module(f'reverb.datasets.{name}')", "datasets"),
        ("import importlib\nimportlib.import_module(name)", ""),
        ("__import__('reverb.server')", "server"),
    ],
)
def test_every_spelling_of_an_import_is_found(source, found, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")
    assert tuple(found.split(".") if found else ()) in set(reverb_imports(path))


ADAPTED = sorted(path.parent.name for path in PACKAGE.glob("adapters/*/__init__.py"))


# Paths that programs of dm-reverb import, and modules with a page of their own.
IMPORTED_BY_PROGRAMS = {
    "reverb.client",
    "reverb.item_selectors",
    "reverb.replay_sample",
    "reverb.reverb_types",
    "reverb.server",
    "reverb.server_status",
    "reverb.structured_writer",
    "reverb.trajectory_writer",
    # A `repr` hides tokens by the same rule everywhere.
    "reverb.shown_text",
}


def documented_modules():
    """The modules whose names `docs/extensions/public_names.py` wants documented."""
    source = (ROOT / "docs/extensions/public_names.py").read_text(encoding="utf-8")
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List)
    }
    return set(values["MODULES"])


FILES = ["own_server.py", "library.py", "queue.py", "queue_values.py"]


@pytest.mark.parametrize("library", [*ADAPTED, *FILES])
def test_adapters_import_documented_names_only(library):
    own = f"reverb.adapters.{library}"
    modules = documented_modules() | IMPORTED_BY_PROGRAMS
    folder = PACKAGE / "adapters" / library
    for path in [folder] if folder.is_file() else folder.rglob("*.py"):
        for name in imports(path):
            if not name.startswith("reverb") or f"{name}.".startswith(f"{own}."):
                continue
            if library == "ray" and name.startswith("reverb.cluster."):
                continue  # Its other half.
            if library == "gymnasium" and name.startswith("reverb._recording."):
                continue  # The makers of its items, which imports of datasets share.
            if library == "transfer_queue" and name.startswith("reverb.adapters.ray."):
                continue  # Its server on Ray.
            if name.startswith(tuple(f"reverb.adapters.{it[:-3]}." for it in FILES)):
                continue  # Files of adapters, with the same rule.
            assert is_documented(name, modules), f"{path} imports {name}"


def is_documented(name, modules):
    """Whether each part of a name is documented, up to the first that is no module."""
    found, path = reverb, "reverb"
    for part in name.split(".")[1:]:
        path += f".{part}"
        if part in reverb._TENSORFLOW_NAMES:
            return True
        is_public = part in getattr(found, "__all__", vars(found)) and part[0] != "_"
        if not is_public and path not in modules:
            return False
        found = pkgutil.resolve_name(path)
        if not isinstance(found, types.ModuleType):
            return True
    return True


def test_one_file_imports_the_compiled_module():
    importers = {
        str(path.relative_to(PACKAGE))
        for path in python_files()
        if any(name.endswith("._native") for name in imports(path))
    }
    assert importers == {"core/__init__.py"}


@pytest.mark.parametrize(
    ("library", "files"),
    [
        ("ray", {"adapters/ray/engine.py"}),
        ("gymnasium", {"adapters/gymnasium/library.py", "adapters/sb3/library.py"}),
    ],
)
def test_few_files_import_the_library(library, files):
    importers = {
        str(path.relative_to(PACKAGE))
        for path in python_files()
        if any(name.split(".")[0] == library for name in imports(path))
    }
    assert importers == files


def test_tensorflow_is_imported_inside_functions_only():
    for path in python_files():
        if path.is_relative_to(PACKAGE / "tf_ops") or path.is_relative_to(PACKAGE / "adapters"):
            continue
        for node in ast.parse(path.read_text()).body:
            names = {
                alias.name.split(".")[0]
                for inner in ast.walk(node)
                if isinstance(inner, ast.Import) and not isinstance(node, ast.FunctionDef)
                for alias in inner.names
            }
            if isinstance(node, ast.ClassDef):
                continue  # Its methods import when called.
            assert "tensorflow" not in names, path


def test_no_file_uses_unsafe_code_unless_it_may():
    allowed = {f"reverb/core/{name}.rs" for name in ("allocator/src/lib", "base/src/memory")}
    # Arrays of NumPy, and tensors of other libraries.
    allowed |= {f"reverb/core/bindings/src/{name}.rs" for name in ("array", "batch", "dlpack")}
    # Files of a parent, by their numbers.
    allowed |= {"reverb/core/bindings/src/inherited_ports.rs"}
    # TensorFlow's C interface.
    kernels = ("api", "attrs", "kernel", "strings", "tensor")
    allowed |= {f"reverb/tf_ops/kernels/src/{name}.rs" for name in kernels}
    allowed |= {"reverb/tf_ops/shim/src/lib.rs"}
    # An allocator that counts, for a test.
    allowed |= {"reverb/core/client/tests/large_allocations.rs"}
    users = {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*.rs")
        if any(
            word in line.split("//")[0]
            for line in path.read_text().splitlines()
            for word in ("unsafe {", "unsafe impl", "unsafe fn")
        )
    }
    assert users <= allowed


def test_every_test_lies_in_a_room():
    assert {path.name for path in TESTS.glob("*.py")} == {"conftest.py"}


def test_a_test_that_needs_a_library_lies_in_its_room():
    """Fails for a test of another room that imports TensorFlow or a library of an adapter."""
    libraries = {"tensorflow", "torch", "jax", "gymnasium", "ray", "stable_baselines3", "torchrl"}
    libraries |= {"tf_agents", "acme", "minari", "datasets", "tensorflow_datasets", "tensordict"}
    rooms = [path for path in TESTS.iterdir() if path.is_dir()]
    for room in rooms:
        if room.name.startswith("with_") or room.name in ("conformance", "integrations", "support"):
            continue
        for path in room.rglob("*.py"):
            tried = re.findall(r'importorskip\(\s*"(\w+)', path.read_text(encoding="utf-8"))
            named = {name.split(".")[0] for name in imports(path)} | set(tried)
            assert not named & libraries, f"{path} belongs to a room with_LIBRARY"


def test_the_files_that_begin_first_are_there():
    conftest = (TESTS / "conftest.py").read_text(encoding="utf-8")
    longest = re.search(r"^LONGEST = \((.*?)^\)", conftest, re.MULTILINE | re.DOTALL)[1]
    paths = re.findall(r'"(.+?)"', longest)
    assert paths
    assert [path for path in paths if not (TESTS / path).is_file()] == []


def test_no_test_edits_the_path():
    edit = re.compile(r"sys\.path(\.(append|insert|extend)|\s*\+=|\[.*\]\s*=|\s*=[^=])")
    assert [path for path in python_files_of_tests() if edit.search(path.read_text())] == []


def test_no_module_of_the_tests_hides_one_of_python():
    shared = [path for folder in (TESTS / "support", *SCRIPTS) for path in folder.rglob("*.py")]
    names = {path.stem for path in shared} | {path.parent.name for path in shared}
    names |= {path.name for path in TESTS.iterdir() if path.is_dir()}
    assert not names & (sys.stdlib_module_names | set(dir(builtins)))


def test_no_room_passes_for_a_library():
    # A folder that is on the path can be imported, also where the library of its name is missing.
    rooms = {path.name for path in TESTS.iterdir() if path.is_dir()} - {"conformance", "support"}
    files = python_files() + python_files_of_tests()
    imported = {name for path in files for name in imports(path)}
    assert not rooms & {name.split(".")[0] for name in imported}


@pytest.mark.parametrize(
    "path",
    [*python_files(), *sorted(TESTS.rglob("*.py")), *sorted(PACKAGE.rglob("*.rs"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_file_names_its_licence(path):
    # Generated Rust code and module docs may come first.
    assert "SPDX-License-Identifier: Apache-2.0" in "\n".join(path.read_text().splitlines()[:3])


def test_comments_of_rust_files_fit_in_100_columns():
    # rustfmt wraps code and leaves comments alone; ruff has a rule for Python.
    too_long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted(PACKAGE.rglob("*.rs"))
        if "generated" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 100 and line.lstrip().startswith("//") and " " in line.strip("/! ")
    ]
    assert too_long == []


def test_the_overview_has_each_crate_above_those_that_use_it():
    text = (ROOT / "ARCHITECTURE.md").read_text().split("## Dependencies")[1].split("## ")[0]
    rows = re.findall(r"^\d\. [^:]*: (.*?)\.$", text, re.MULTILINE | re.DOTALL)
    listed = {
        f"reverb-{name}": (number, {f"reverb-{it}" for it in re.findall(r"`([\w-]+)`", beside)})
        for number, row in enumerate(rows)
        for name, beside in re.findall(r"`([\w-]+)`(?: \((.*?)\))?", row)
    }
    assert set(listed) == {name for name in CRATES if name.startswith("reverb-")}
    for crate, used in CRATES.items():
        row, beside = listed.get(crate, (len(rows), set()))
        assert {it for it in used if listed[it][0] >= row} == beside, crate


def test_python_waits_where_the_overview_says():
    waits = re.compile(
        r"\b(?:block_on|poll_for|blocking_recv)\(|\bthread::(?:park|sleep)|\bCondvar\b"
    )
    folder = PACKAGE / "core" / "bindings" / "src"
    users = {path.name for path in folder.rglob("*.rs") if waits.search(path.read_text())}
    # The second is that of a dropped structured writer.
    assert users == {"wait.rs", "structured_writer.rs", "checkpoint.rs", "exit.rs"}
