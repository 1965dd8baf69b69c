# SPDX-License-Identifier: Apache-2.0
"""Allowed dependencies and rooms of tests; ARCHITECTURE.md and tests/README.md have the reasons."""

import ast
import builtins
import importlib
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "reverb"
TESTS = ROOT / "tests"
# Other interpreters run these as scripts, so they find their modules themselves.
SCRIPTS = [TESTS / "conformance" / name for name in ("peer_programs", "differential")]

# Every arrow between crates that is allowed; one that is not used is no fault.
CRATES = {
    "reverb-allocator": set(),
    "reverb-auth": {"reverb-data"},
    "reverb-data": {"reverb-memory"},
    "reverb-engine": {"reverb-data", "reverb-memory"},
    "reverb-tls": {"reverb-data"},
    "reverb-http": {"reverb-tls"},
    "reverb-log": set(),
    "reverb-memory": set(),
    "reverb-rpc": {"reverb-data", "reverb-tasks", "reverb-tls"},
    "reverb-tasks": set(),
    "reverb-wire": {"reverb-data", "reverb-rpc"},
    "reverb-checkpoint": {"reverb-data", "reverb-engine", "reverb-wire"},
    "reverb-server": {
        "reverb-auth",
        "reverb-checkpoint",
        "reverb-data",
        "reverb-engine",
        "reverb-http",
        "reverb-rpc",
        "reverb-tls",
        "reverb-wire",
    },
    "reverb-client": {"reverb-data", "reverb-memory", "reverb-tasks", "reverb-wire"},
    "reverb-shards": {"reverb-data", "reverb-wire"},
    "reverb-connect": {
        "reverb-client",
        "reverb-data",
        "reverb-rpc",
        "reverb-server",
        "reverb-shards",
        "reverb-wire",
    },
    "reverb-bindings": {
        "reverb-allocator",
        "reverb-auth",
        "reverb-checkpoint",
        "reverb-client",
        "reverb-connect",
        "reverb-data",
        "reverb-engine",
        "reverb-log",
        "reverb-memory",
        "reverb-rpc",
        "reverb-server",
        "reverb-shards",
        "reverb-tf",
        "reverb-tls",
        "reverb-wire",
    },
    "reverb-tf": {"reverb-client", "reverb-data", "reverb-memory", "reverb-wire"},
    "reverb-ops-shim": set(),
    "regenerate-protos": set(),
}
# Crates that a crate must not depend on directly.
_HTTP = {"h2", "http", "hyper", "socket2", "tonic"}
_PYTHON = {"pyo3", "numpy"}
FOREIGN_CRATES = {
    "reverb-allocator": set(),
    "reverb-auth": {"prost", "tokio"} | _HTTP | _PYTHON,
    "reverb-data": {"prost", "tokio"} | _HTTP | _PYTHON,
    "reverb-engine": {"prost"} | _HTTP | _PYTHON,
    "reverb-http": {"h2", "prost"} | _PYTHON,
    "reverb-log": {"prost", "tokio"} | _HTTP | _PYTHON,
    "reverb-memory": {"prost", "tokio"} | _HTTP | _PYTHON,
    "reverb-rpc": _PYTHON,
    "reverb-tasks": {"prost", "tokio"} | _HTTP | _PYTHON,
    "reverb-tls": {"prost"} | _HTTP | _PYTHON,
    "reverb-wire": _HTTP | _PYTHON,
    "reverb-checkpoint": _HTTP | _PYTHON,
    "reverb-server": _HTTP | _PYTHON,
    "reverb-client": _HTTP | _PYTHON,
    "reverb-connect": _HTTP | _PYTHON,
    "reverb-shards": _HTTP | _PYTHON,
    "reverb-tf": _HTTP | _PYTHON,
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


def imports(path):
    """The absolute names of all modules that a file imports, also inside its functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            for alias in node.names:
                # `from reverb import x` may name a module, `from reverb.x import Y` a class.
                yield f"{node.module}.{alias.name}"


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


def test_every_crate_is_in_the_table(crates):
    assert set(crates) == set(CRATES)


@pytest.mark.parametrize("crate", CRATES)
def test_crates_know_only_who_they_may(crates, crate):
    ours = {name for name in crates[crate] if name.startswith("reverb-")}
    assert ours <= CRATES[crate]


@pytest.mark.parametrize("crate", FOREIGN_CRATES)
def test_crates_leave_other_worlds_alone(crates, crate):
    assert crates[crate].isdisjoint(FOREIGN_CRATES[crate])


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_python_modules_know_only_who_they_may(path):
    module = module_name(path)
    if not module:
        return
    too_high = {
        ".".join(("reverb", *imported))
        for imported in reverb_imports(path)
        if imported and layer_of(imported) > layer_of(module)
    }
    assert not too_high


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


@pytest.mark.parametrize("library", [*ADAPTED, "own_server.py"])
def test_adapters_import_documented_names_only(library):
    own = f"reverb.adapters.{library}"
    modules = documented_modules() | IMPORTED_BY_PROGRAMS
    folder = PACKAGE / "adapters" / library
    for path in [folder] if folder.is_file() else folder.rglob("*.py"):
        for name in imports(path):
            module, _, member = name.rpartition(".")
            if not name.startswith("reverb") or name in modules or f"{name}.".startswith(f"{own}."):
                continue
            if library == "ray" and module.startswith("reverb.cluster"):
                continue  # Its other half.
            if library == "gymnasium" and module.startswith("reverb._recording"):
                continue  # The makers of its items, which imports of datasets share.
            if module == "reverb.adapters.own_server":
                continue  # A file of adapters, with the same rule.
            assert module in modules | {own}, f"{path} imports {name}"
            found = importlib.import_module("reverb" if module == own else module)
            is_public = member in getattr(found, "__all__", vars(found)) and member[0] != "_"
            assert module == own or is_public, f"{path} imports {name}"


def test_one_file_imports_the_compiled_module():
    importers = {
        str(path.relative_to(PACKAGE))
        for path in python_files()
        if any(name.endswith("._native") for name in imports(path))
    }
    assert importers == {"core/__init__.py"}


@pytest.mark.parametrize(
    ("library", "file"),
    [("ray", "adapters/ray/engine.py"), ("gymnasium", "adapters/gymnasium/library.py")],
)
def test_one_file_imports_the_library(library, file):
    importers = {
        str(path.relative_to(PACKAGE))
        for path in python_files()
        if any(name.split(".")[0] == library for name in imports(path))
        or f'import_module("{library}")' in path.read_text()
    }
    assert importers == {file}


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
    allowed = {f"reverb/core/{name}/src/lib.rs" for name in ("allocator", "memory")}
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
    waits = re.compile(r"\bblock_on\(|\bthread::(?:park|sleep)|\bblocking_recv\(|\bCondvar\b")
    folder = PACKAGE / "core" / "bindings" / "src"
    users = {path.name for path in folder.rglob("*.rs") if waits.search(path.read_text())}
    # The second is that of a dropped structured writer.
    assert users == {"wait.rs", "structured_writer.rs", "checkpoint.rs", "exit.rs"}
