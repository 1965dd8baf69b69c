# SPDX-License-Identifier: Apache-2.0
"""The absl flag `--config`, for programs that start a server as dm-reverb does.

The command `reverb_server` parses its options itself and does not need absl.
"""

from typing import Any

from google.protobuf import text_format

from reverb.server_executable.config_spellings import parse_written

try:
    from absl import flags
except ImportError:
    flags = None

__all__ = ["get_server_config_proto", "get_server_config_text"]

if flags is not None:
    flags.DEFINE_string(
        "config", None, "The server as a ReverbServerConfig message in protobuf's text form."
    )
    flags.mark_flag_as_required("config")


def get_server_config_text() -> str:
    """Returns the text of `--config`.

    Raises:
      ImportError: If absl-py is not installed.
      absl.flags.UnparsedFlagAccessError: Before `absl.app.run` has read the command line.
    """
    if flags is None:
        raise ImportError(
            "The flag --config is read by absl-py, which is not installed: pip install absl-py, or "
            "start the server by the command reverb_server, which does without."
        )
    return flags.FLAGS.config


def get_server_config_proto() -> Any:
    """Parses the `ReverbServerConfig` message in `--config`.

    Raises:
      ImportError: If absl-py is not installed.
      absl.flags.UnparsedFlagAccessError: Before `absl.app.run` has read the command line.
      google.protobuf.text_format.ParseError: If the text is invalid; names line and column, or the
        field.
    """
    config, problems = parse_written(get_server_config_text())
    for path, problem in problems:
        raise text_format.ParseError(f"{path} {problem}")
    return config
