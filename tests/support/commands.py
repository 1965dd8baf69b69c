# SPDX-License-Identifier: Apache-2.0
"""The commands of `reverb` by their names."""

from reverb import command

# Those that are no clients of a running server.
WITHOUT_SERVER = {"reshard", "token", "tls"}


def all_commands():
    (actions,) = [it for it in command._parser()._actions if it.choices]
    return set(actions.choices)


def commands_of_servers():
    return all_commands() - WITHOUT_SERVER
