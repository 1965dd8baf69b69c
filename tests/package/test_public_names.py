# SPDX-License-Identifier: Apache-2.0
"""The names that programs written for the original import, and where they find them."""

import ast
import importlib
import importlib.metadata
import inspect
import pathlib
import re
import typing

import pytest

import reverb

TOP_LEVEL = {
    "Client": "reverb.client",
    "Writer": "reverb.client",
    "Server": "reverb.server",
    "Table": "reverb.server",
    "TrajectoryWriter": "reverb.trajectory_writer",
    "TrajectoryColumn": "reverb.trajectory_writer",
    "ReplaySample": "reverb.replay_sample",
    "SampleInfo": "reverb.replay_sample",
    "ReverbError": "reverb.errors",
    "DeadlineExceededError": "reverb.errors",
}
MODULE_ALIASES = {
    "selectors": "reverb.item_selectors",
    "rate_limiters": "reverb.rate_limiters",
    "structured": "reverb.structured_writer",
    "checkpointers": "reverb.checkpointers",
    "libpybind": "reverb.libpybind",
}
SUBMODULES = [
    "cc",
    "client",
    "errors",
    "item_selectors",
    "platform",
    "pybind",
    "rate_limiters",
    "replay_sample",
    "reverb_types",
    "server",
    "structured_writer",
    "trajectory_writer",
]
MEMBERS = {
    "reverb.errors": "ReverbError DeadlineExceededError",
    "reverb.item_selectors": "Fifo Lifo Uniform Prioritized MaxHeap MinHeap",
    "reverb.rate_limiters": "RateLimiter MinSize SampleToInsertRatio Queue Stack",
    "reverb.replay_sample": "SampleInfo ReplaySample",
    "reverb.reverb_types": "Fifo Heap Lifo Prioritized Uniform SelectorType SpecNest TableInfo",
    "reverb.client": "Client Writer",
    "reverb.server": "Server Table TableExtensionBase",
    "reverb.trajectory_writer": "TrajectoryWriter TrajectoryColumn",
    "reverb._writers.sequence": "SequenceWriter",
    "reverb.structured_writer": (
        "StructuredWriter Config ConditionProto Condition Pattern ReferenceStep PatternTransform "
        "create_reference_step pattern_from_transform create_config unpack_pattern "
        "infer_signature constant_priority_fn td_error"
    ),
    "reverb.checkpointers": (
        "Checkpoint CheckpointerBase CheckpointerOptions DefaultCheckpointer TableStatistics "
        "TempDirCheckpointer default_checkpointer read"
    ),
    "reverb.platform.checkpointers_lib": "CheckpointerBase DefaultCheckpointer TempDirCheckpointer",
    "reverb.platform.default.checkpointers": (
        "CheckpointerBase DefaultCheckpointer TempDirCheckpointer default_checkpointer"
    ),
    "reverb.cc": "patterns_pb2 schema_pb2",
    "reverb.pybind": (
        "ItemSelector FifoSelector LifoSelector UniformSelector PrioritizedSelector HeapSelector "
        "RateLimiter Table Writer Sampler Client Server WeakCellRef TrajectoryWriter "
        "StructuredWriter selector_from_proto Checkpointer TableExtension ChunkerOptions "
        "ConstantChunkerOptions AutoTunedChunkerOptions create_default_checkpointer"
    ),
}
SIGNATURES = {
    "Client": "(server_address)",
    "Client.insert": "(self, data, priorities)",
    "Client.writer": (
        "(self, max_sequence_length, delta_encoded=False, chunk_length=None, "
        "max_in_flight_items=25)"
    ),
    "Client.trajectory_writer": "(self, num_keep_alive_refs, *, validate_items=True)",
    "Client.structured_writer": "(self, configs)",
    "Client.sample": (
        "(self, table, num_samples=1, *, emit_timesteps=True, unpack_as_table_signature=False)"
    ),
    "Client.mutate_priorities": "(self, table, updates=None, deletes=None)",
    "Client.reset": "(self, table)",
    "Client.server_info": "(self, timeout=None)",
    "Client.checkpoint": "(self)",
    "Writer.append": "(self, data)",
    "Writer.append_sequence": "(self, sequence)",
    "Writer.create_item": "(self, table, num_timesteps, priority)",
    "Writer.flush": "(self)",
    "Writer.close": "(self, retry_on_unavailable=True)",
    "TrajectoryWriter.append": "(self, data, *, partial_step=False)",
    "TrajectoryWriter.create_item": "(self, table, priority, trajectory)",
    "TrajectoryWriter.flush": "(self, block_until_num_items=0, timeout_ms=None)",
    "TrajectoryWriter.end_episode": "(self, clear_buffers=True, timeout_ms=None)",
    "TrajectoryWriter.configure": "(self, path, *, num_keep_alive_refs, max_chunk_length)",
    "TrajectoryWriter.close": "(self)",
    "structured.StructuredWriter.append": "(self, data, *, partial_step=False)",
    "structured.StructuredWriter.flush": "(self, block_until_num_items=0, timeout_ms=None)",
    "structured.StructuredWriter.end_episode": "(self, clear_buffers=True, timeout_ms=None)",
    "structured.create_config": "(pattern, table, conditions=(), priority=None)",
    "structured.infer_signature": "(configs, step_spec)",
    "structured.pattern_from_transform": "(step_structure, transform)",
    "structured.td_error": "(max_priority_weight, step_structure, get_field_from_step_fn)",
    "Table": (
        "(name, sampler, remover, max_size, rate_limiter, max_times_sampled=0, extensions=(), "
        "signature=None)"
    ),
    "Table.queue": "(name, max_size, extensions=(), signature=None)",
    "Table.stack": "(name, max_size, extensions=(), signature=None)",
    "Table.can_sample": "(self, num_samples)",
    "Table.can_insert": "(self, num_inserts)",
    "Table.replace": (
        "(self, name=None, sampler=None, remover=None, max_size=None, rate_limiter=None, "
        "max_times_sampled=None, extensions=None, signature=None)"
    ),
    "Server": "(tables=None, port=None, checkpointer=None)",
    "rate_limiters.RateLimiter": ("(samples_per_insert, min_size_to_sample, min_diff, max_diff)"),
    "rate_limiters.SampleToInsertRatio": ("(samples_per_insert, min_size_to_sample, error_buffer)"),
    "rate_limiters.MinSize": "(min_size_to_sample)",
    "rate_limiters.Queue": "(size)",
    "checkpointers.DefaultCheckpointer": "(path, group='', fallback_checkpoint_path=None)",
    "checkpointers.default_checkpointer": "(group=None)",
}


def lookup(dotted):
    value = reverb
    for name in dotted.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize(("name", "module"), TOP_LEVEL.items())
def test_names_at_the_top(name, module):
    assert getattr(reverb, name) is getattr(importlib.import_module(module), name)
    assert name in reverb.__all__


@pytest.mark.parametrize(("name", "module"), MODULE_ALIASES.items())
def test_modules_at_the_top(name, module):
    assert getattr(reverb, name) is importlib.import_module(module)


@pytest.mark.parametrize("name", SUBMODULES)
def test_submodules_are_there_after_a_plain_import(name):
    assert getattr(reverb, name) is importlib.import_module(f"reverb.{name}")


def test_old_checkpointer_path_is_there_after_a_plain_import():
    assert reverb.platform.checkpointers_lib.DefaultCheckpointer(path="/tmp/x").path == "/tmp/x"


@pytest.mark.parametrize(
    ("path", "home"),
    [
        ("reverb.platform.checkpointers_lib", "reverb.checkpointers"),
        ("reverb.platform.default.checkpointers", "reverb.checkpointers"),
        (
            "reverb.platform.default.server_main_command_line_args",
            "reverb.server_executable.config_flag",
        ),
    ],
)
def test_paths_of_dm_reverb_are_the_same_module(path, home):
    module = importlib.import_module(path)
    assert module is importlib.import_module(home)
    assert lookup(path.removeprefix("reverb.")) is module


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module, names in MEMBERS.items() for name in names.split()],
)
def test_members_of_modules(module, name):
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("name", "expected"), SIGNATURES.items())
def test_signatures_are_the_originals(name, expected):
    signature = inspect.signature(lookup(name))
    # New arguments must be keyword-only and optional, so that no old call sets them by accident.
    old = {part.split("=")[0] for part in re.findall(r"\w+=\S+|\w+", expected)}
    kept = []
    for parameter in signature.parameters.values():
        if parameter.name in old:
            kept.append(parameter.replace(annotation=parameter.empty))
        else:
            assert parameter.kind is parameter.KEYWORD_ONLY, parameter
            assert parameter.default is not parameter.empty, parameter
    assert str(inspect.Signature(kept)) == expected


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'ReplayDataset'"):
        _ = reverb.ReplayDataset


def test_all_names_exist():
    assert [name for name in reverb.__all__ if not hasattr(reverb, name)] == []


def test_the_version_is_that_of_the_distribution():
    pyproject = pathlib.Path(__file__).parents[2] / "pyproject.toml"
    declared = re.search(r'^version = "(.*)"$', pyproject.read_text(), re.MULTILINE).group(1)
    assert reverb.__version__ == declared
    assert importlib.metadata.version("reverb-replay") == declared


def test_types_are_shipped():
    package = pathlib.Path(reverb.__file__).parent
    assert (package / "py.typed").exists()
    assert (package / "core" / "_native.pyi").exists()


def public_callables():
    """Every public class, function and method of the modules that users import from."""
    for module_name in MEMBERS:
        module = importlib.import_module(module_name)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if inspect.isclass(value) and value.__module__ == module_name:
                yield f"{module_name}.{name}", value
                for key, member in vars(value).items():
                    is_method = callable(member) or isinstance(member, property | classmethod)
                    if not key.startswith("_") and is_method and not inspect.isclass(member):
                        yield f"{module_name}.{name}.{key}", member
            elif inspect.isfunction(value):
                yield f"{module_name}.{name}", value


@pytest.mark.parametrize("name", sorted({name for name, _ in public_callables()}))
def test_every_public_name_is_documented(name):
    value = dict(public_callables())[name]
    documented = value.__func__ if isinstance(value, classmethod) else value
    assert documented.__doc__


PUBLIC_CLASSES = sorted(
    {
        value
        for module in (
            reverb,
            reverb.structured,
            reverb.checkpointers,
            reverb.cluster,
            reverb.aio,
            reverb.datasets,
        )
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__.startswith("reverb")
        and not value.__module__.startswith("reverb.core")
    },
    key=lambda value: f"{value.__module__}.{value.__qualname__}",
)


@pytest.mark.parametrize("cls", PUBLIC_CLASSES, ids=lambda cls: cls.__qualname__)
def test_a_public_class_says_where_it_is_imported_from(cls):
    """So its pickles outlive a move of its file, and no private path is in them."""
    assert not any(part.startswith("_") for part in cls.__module__.split(".")[1:])
    assert getattr(importlib.import_module(cls.__module__), cls.__name__) is cls
    for method in vars(cls).values():
        if inspect.isfunction(method):
            typing.get_type_hints(method)


def test_the_top_of_the_package_has_few_modules():
    """Others belong into a room."""
    assert len(list(pathlib.Path(reverb.__path__[0]).glob("*.py"))) <= 24


def test_no_signature_shows_a_private_class():
    """A class whose name or path is private helps nobody: `help` shows it, and editors do."""
    shown = {
        f"{name}: {found}"
        for name, value in public_callables()
        if callable(value) and not isinstance(value, classmethod)
        for found in re.findall(r"[\w.]*\b_[a-z]\w*\.[\w.]+|\b_[A-Z]\w+", signature_of(value))
    }
    # Clients make the writers, so that their constructors are not for programs.
    assert {it for it in shown if not re.search(r"Writer: reverb\.core\._native\.", it)} == set()


def signature_of(value):
    try:
        return str(inspect.signature(value))
    except ValueError:  # A class of the core tells none.
        return ""


def test_no_error_has_a_private_class():
    private = [
        f"{path}: {node.name}"
        for path in pathlib.Path(reverb.__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name.startswith("_")
        if any(ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases)
    ]
    assert private == []
