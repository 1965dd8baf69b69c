# SPDX-License-Identifier: Apache-2.0
"""The commands of `reverb` by their names."""

from reverb import command
from support import made_episodes

# Those that are no clients of a running server.
WITHOUT_SERVER = {"checkpoint list", "checkpoint verify", "reshard", "store", "token", "tls"}


def all_commands():
    (actions,) = [it for it in command._parser()._actions if it.choices]
    return set(actions.choices)


def commands_of_servers():
    return all_commands() - WITHOUT_SERVER


def positional(name, address):
    """The arguments of a command that have no name: its dataset, and the address of the server.

    The dataset is that of `write_dataset`, in the working directory.
    """
    return ["npz:dataset.npz", address] if name == "import" else [address]


def write_dataset(directory):
    """Writes the dataset that tests of all commands import: one episode of 3 steps."""
    made_episodes.write_npz(directory / "dataset.npz", [made_episodes.episode(3)])
