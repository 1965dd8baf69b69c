# SPDX-License-Identifier: Apache-2.0
"""Every name of dm-reverb that a program may look for: it is here, or stands in a list with why."""

import ast
import fnmatch
import importlib
import importlib.util
import pathlib
import subprocess

import pytest

from support.compared_packages import PEER_PYTHON

PROGRAM = pathlib.Path(__file__).parent / "peer_programs" / "names.py"

NATIVE = "methods of compiled classes have other names and arguments: use the Python classes"
HELPER = "a helper of the original's own files"

# Missing names with the reason, as in docs/howto/migrating.md. Patterns of `fnmatch`.
ACCEPTED = {
    "reverb.cc.ops*": "wrappers of ops, which have other names and attributes here",
    "reverb.cc.schema_pb2.Timeout*": "a message that no other one uses",
    "reverb.*pybind.Client.[A-Z]*": NATIVE,
    "reverb.*pybind.Sampler.GetNext*": NATIVE,
    "reverb.*pybind.Server.[A-Z]*": NATIVE,
    "reverb.*pybind.StructuredWriter.[A-Z]*": NATIVE,
    "reverb.*pybind.TrajectoryWriter.[A-Z]*": NATIVE,
    "reverb.*pybind.TrajectoryWriter.max_num_keep_alive_refs": NATIVE,
    "reverb.*pybind.Writer.[A-Z]*": NATIVE,
    "reverb.pip_package": "how the original is built",
    "reverb.platform.default.load_op_library*": HELPER,
    "reverb.structured_writer._ConditionBuilder": HELPER,
    "reverb.structured_writer._RefNode": HELPER,
    "reverb.t*_dataset._convert_lists_to_tuples": HELPER,
    "reverb.t*_dataset._is_tf1_runtime": HELPER,
    "reverb.trajectory_writer._ColumnHistory.*": "a history is filled by its writer alone",
    "reverb.trajectory_writer._is_named_tuple": HELPER,
    "reverb.trajectory_writer._tree_*": HELPER,
}


@pytest.mark.conformance
def test_no_name_is_missing_but_those_that_are_accepted():
    output = subprocess.run(
        [PEER_PYTHON, PROGRAM], cwd="/", capture_output=True, text=True, check=True
    ).stdout
    theirs = [line for line in output.splitlines() if line.split(".")[0] == "reverb"]
    modules = {name for name in theirs if is_module(name)} | {"reverb"}
    assert len(theirs) > 300
    missing = [name for name in theirs if not is_here(name, modules)]
    unexplained = [
        name
        for name in missing
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in ACCEPTED)
    ]
    assert unexplained == []
    idle = [pattern for pattern in ACCEPTED if not fnmatch.filter(missing, pattern)]
    assert idle == [], "these are here by now"


def is_module(name):
    """Whether this package has a module of this name."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, AttributeError):
        return False


def defined_in(path):
    """The names at the top of a file that cannot be imported, because TensorFlow is not here."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def is_here(dotted, modules):
    """Whether this package has a name; members of what needs TensorFlow are believed."""
    parts = dotted.split(".")
    length = max(n for n in range(1, len(parts) + 1) if ".".join(parts[:n]) in modules)
    module_name, attributes = ".".join(parts[:length]), parts[length:]
    try:
        value = importlib.import_module(module_name)
        for name in attributes:
            value = getattr(value, name)
    except AttributeError:
        # The fields of a message are no attributes of its class.
        descriptor = getattr(value, "DESCRIPTOR", None)
        return parts[-1] in getattr(descriptor, "fields_by_name", ())
    except ImportError:
        spec = importlib.util.find_spec(module_name)
        is_lazy = module_name == "reverb" or not attributes
        return is_lazy or attributes[0] in defined_in(pathlib.Path(spec.origin))
    return True
