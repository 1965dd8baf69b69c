# SPDX-License-Identifier: Apache-2.0
"""The environment variables of the command `reverb_server`."""

import dataclasses
import re
from collections.abc import Mapping

from reverb.server_executable.options import OPTIONS, VARIABLE_PREFIX

__all__ = ["CONFIG_FILE_VARIABLE", "CONFIG_VARIABLE", "Environment", "read_environment"]

CONFIG_VARIABLE = f"{VARIABLE_PREFIX}CONFIG"
CONFIG_FILE_VARIABLE = f"{VARIABLE_PREFIX}CONFIG_FILE"

# Variables that Kubernetes sets in every container for a service whose name is or begins with
# `reverb-server`; https://kubernetes.io/docs/concepts/services-networking/service/
_OF_KUBERNETES = re.compile(r"(.*_)?(SERVICE_(HOST|PORT(_.*)?)|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_ADDRESS_OF_KUBERNETES = re.compile(r"(tcp|udp|sctp)://")


@dataclasses.dataclass(frozen=True)
class Environment:
    """The environment variables for a server.

    Attributes:
      config: Text of a config, or `None`.
      config_file: Path of a config, or `None`.
      texts: Values of options, by the option's name.
      notes: Remarks on variables without effect.
    """

    config: str | None
    config_file: str | None
    texts: dict[str, str]
    notes: list[str]


def read_environment(variables: Mapping[str, str]) -> Environment:
    """Reads all variables that begin with `REVERB_SERVER_`. An empty one counts as not set."""
    names = {option.variable: option.name for option in OPTIONS}
    texts, notes = {}, []
    for variable, text in sorted(variables.items()):
        if not variable.startswith(VARIABLE_PREFIX) or not text:
            continue
        if variable.endswith("_PORT") and _ADDRESS_OF_KUBERNETES.match(text):
            notes.append(
                f"{variable} has no effect: {text!r} is the address of a service, which Kubernetes "
                "sets"
            )
        elif variable in names:
            texts[names[variable]] = text
        elif variable not in (CONFIG_VARIABLE, CONFIG_FILE_VARIABLE) and not (
            _OF_KUBERNETES.fullmatch(variable.removeprefix(VARIABLE_PREFIX))
        ):
            notes.append(f"{variable} has no effect: there is no option of this name")
    return Environment(
        config=variables.get(CONFIG_VARIABLE) or None,
        config_file=variables.get(CONFIG_FILE_VARIABLE) or None,
        texts=texts,
        notes=notes,
    )
