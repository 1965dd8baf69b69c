# SPDX-License-Identifier: Apache-2.0
"""Old import paths of the server's command, with and without the libraries that they may use."""

import importlib

import pytest

from support.log_lines import messages
from support.programs import run_fresh as run

MEMBERS = {
    "reverb.server_executable.server_main": ["main", "app_run_main"],
    "reverb.server_executable.server_from_proto": [
        "selector_from_proto",
        "rate_limiter_from_proto",
        "tables_from_proto",
    ],
    "reverb.server_executable.reverb_config_pb2": ["ReverbServerConfig"],
    "reverb.platform.default.server_main_command_line_args": ["get_server_config_proto"],
    "reverb.platform.default.ensure_tf_install": ["ensure_tf_version"],
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in MEMBERS.items() for name in names]
)
def test_old_names_are_there(module, name):
    assert callable(getattr(importlib.import_module(module), name))


def test_the_flag_config_becomes_a_message():
    program = """
    import sys
    from absl import flags
    from reverb.platform.default import server_main_command_line_args as arguments
    flags.FLAGS(["program", '--config=port: 7 tables: { table_name: "a" }'])
    config = arguments.get_server_config_proto()
    print(type(config).__name__, config.port, config.tables[0].table_name)
    """
    assert run(program) == ["ReverbServerConfig 7 a"]


def test_the_flag_config_is_required():
    program = """
    from absl import flags
    from reverb.platform.default import server_main_command_line_args as arguments
    try:
        flags.FLAGS(["program"])
    except flags.IllegalFlagValueError as error:
        print(error)
    """
    (text,) = run(program)
    assert "--config" in text


# Stands in for an environment where absl is not installed; dm-tree, which has its own use for it,
# is imported before.
WITHOUT_ABSL = """
import sys
import reverb
for name in [name for name in sys.modules if name.partition(".")[0] == "absl"]:
    del sys.modules[name]
sys.modules["absl"] = None
"""


def test_without_absl_the_command_works():
    program = """
    import os
    from reverb.core import native
    from reverb.server_executable import server_main
    sys.argv = ["reverb_server", "--config", ""]
    os.dup2(1, 2)
    try:
        server_main.app_run_main()
    except SystemExit as exit:
        native.wait_for_log()
        print(exit.code)
    """
    line, code = run(WITHOUT_ABSL + program.replace("\n    ", "\n"))
    assert messages(f"{line}\n") == [
        "ERROR server: --config, line 1: tables must hold at least one table, got none"
    ]
    assert code == "2"


def test_without_absl_the_flag_says_what_to_do():
    program = """
    from reverb.platform.default import server_main_command_line_args as arguments
    try:
        arguments.get_server_config_proto()
    except ImportError as error:
        print(error)
    """
    assert run(WITHOUT_ABSL + program.replace("\n    ", "\n")) == [
        "The flag --config is read by absl-py, which is not installed: pip install absl-py, or "
        "start the server by the command reverb_server, which does without."
    ]


def test_without_tensorflow_its_check_says_what_to_install():
    program = """
    import sys
    sys.modules["tensorflow"] = None
    from reverb.platform.default.ensure_tf_install import ensure_tf_version
    try:
        ensure_tf_version()
    except ImportError as error:
        print(error)
    """
    text = run(program)[0]
    assert text.startswith("The TensorFlow part of reverb needs TensorFlow 2.12 or later")
