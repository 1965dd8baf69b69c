# SPDX-License-Identifier: Apache-2.0
"""Checks of a buffer's arguments, before its table is known and afterwards."""

import math
from typing import Any

from reverb import Window
from reverb.adapters.torchrl.library import torch
from reverb.adapters.torchrl.sequence_keys import INIT_KEY, TRUNCATED_KEY
from reverb.adapters.torchrl.table_access import TableAccess
from reverb.errors import InvalidArgumentError

__all__ = ["check_parts", "check_settings", "open_table"]

_REDUCTIONS = ("max", "min", "mean", "median", "sum")
# Arguments that go with sequence_length or window, and their defaults.
_OF_SEQUENCES: dict[str, Any] = {
    "end_key": None,
    "end_keys": None,
    "traj_key": None,
    "truncated_key": TRUNCATED_KEY,
    "init_key": INIT_KEY,
}
# Arguments of TorchRL's buffers that this one does not use: harmless values, and the reason for the
# error about other values.
_TABLE = "a Reverb table replaces it"
_PARTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "storage": ((None,), f"{_TABLE}, and max_size is its size"),
    "sampler": ((None,), f"{_TABLE}; alpha samples by priority, sequence_length consecutive steps"),
    "writer": ((None,), _TABLE),
    "collate_fn": ((None,), f"{_TABLE}; give a transform"),
    "sample_unit": ((None,), "sequence_length samples consecutive steps"),
    "dim_extend": ((None, 0), "each row of the data is an item; transpose the data"),
    "checkpointer": ((None,), "dumps and state_dict save a checkpoint of the table"),
    "service_backend": ((None, "direct"), "a pickle of the buffer is for other processes"),
    "service_backend_options": ((None,), "a pickle of the buffer is for other processes"),
    "transport": ((None, "auto", "direct"), "the address of the server decides"),
    "transport_options": ((None,), "the address of the server decides"),
}
# Arguments without effect, because they are about memory in this process.
_OF_NO_EFFECT = ("compilable", "delayed_init")


def check_parts(owner: str, parts: dict[str, Any]) -> None:
    """Checks arguments of TorchRL's buffers that this one does not use.

    Raises:
      InvalidArgumentError: If one is not its default; the text says what to do instead.
      TypeError: If there is no such argument.
    """
    for name, value in parts.items():
        if name in _OF_NO_EFFECT:
            continue
        if name not in _PARTS:
            raise TypeError(f"{owner} has no argument {name}")
        allowed, reason = _PARTS[name]
        if not any(value is it or (it is not None and value == it) for it in allowed):
            shown = value if isinstance(value, str | int) else type(value).__name__
            raise InvalidArgumentError(f"{name} must be {allowed[0]}: {reason}; got {shown}")


def check_settings(
    settings: dict[str, Any], server: Any, max_size: Any, batch_size: Any, generator: Any
) -> None:
    """Checks arguments as far as possible without the table.

    Raises:
      InvalidArgumentError: If a number is out of its range, or if an argument is for buffers of
        another kind.
      ValueError: If `prefetch` cannot be combined with the others.
    """
    for name, value in (
        ("max_size", max_size),
        ("sequence_length", settings["sequence_length"]),
        ("consume_after_n_samples", settings["consume_after_n_samples"]),
    ):
        if value is not None and value < 1:
            raise InvalidArgumentError(f"{name} must be at least 1, got {value}")
    if server is not None and max_size is not None:
        address = server if isinstance(server, str) else server.server_address
        raise InvalidArgumentError(
            f"max_size={max_size} is a setting of the table, which is on server {address}; leave "
            "it out"
        )
    if server is not None and generator is not None:
        raise InvalidArgumentError(
            "generator must be None with a server: its table draws the samples, with its own seed"
        )
    _check_window(settings)
    for name, default in _OF_SEQUENCES.items():
        is_of_steps = settings["sequence_length"] is not None or settings["window"] is not None
        if not is_of_steps and settings[name] != default:
            raise InvalidArgumentError(
                f"{name}={settings[name]!r} is for sequences; give sequence_length or window, or "
                "leave it out"
            )
    if settings["reduction"] not in _REDUCTIONS:
        raise InvalidArgumentError(
            f"reduction must be one of {_REDUCTIONS}, got {settings['reduction']!r}"
        )
    if settings["consume_after_n_samples"] is not None and settings["prefetch"]:
        raise ValueError("Prefetching is not supported when consume_after_n_samples is set.")
    if settings["prefetch"] and batch_size is None:
        raise ValueError("prefetch needs batch_size in the constructor")


def _check_window(settings: dict[str, Any]) -> None:
    """Checks the argument `window`, and that no other one excludes it."""
    window = settings["window"]
    if window is None:
        return
    if not isinstance(window, Window):
        raise TypeError(f"window must be a reverb.Window, got {type(window).__name__}")
    if settings["sequence_length"] is not None:
        raise InvalidArgumentError(
            f"window={window} and sequence_length={settings['sequence_length']} exclude each "
            "other: with a window an item is a whole episode, of which each sample is another "
            "part; with sequence_length it is a sequence that is sampled whole. Leave one out"
        )
    if window.spans:
        raise InvalidArgumentError(
            "window.spans must be empty: all fields of a TensorDict [B, T] have the same steps, "
            f"got {window.spans}"
        )
    if settings["consume_after_n_samples"] is not None:
        raise InvalidArgumentError(
            f"consume_after_n_samples={settings['consume_after_n_samples']} is for items that are "
            "sampled whole, and a sample of a window would remove the other steps unseen; leave "
            "it out"
        )


def open_table(
    server: Any,
    settings: dict[str, Any],
    max_size: int | None,
    alpha: float | None,
    beta: float | None,
    generator: Any,
) -> TableAccess:
    """Opens the table of a buffer, or starts a server with one.

    Raises:
      InvalidArgumentError: If there is no such table, or if the arguments differ from its settings.
      UnavailableError: If no server answers.
    """
    own = {
        "max_size": 1_000_000 if max_size is None else max_size,
        "alpha": alpha,
        "consume_after_n_samples": settings["consume_after_n_samples"],
    }
    if server is None:
        own["seed"] = int(torch.randint(2**31, (), generator=generator))
    access = TableAccess(server, settings["table"], own)
    try:
        _check_table(access, alpha, beta, settings["consume_after_n_samples"])
    except BaseException:
        access.close()
        raise
    return access


def _check_table(
    access: TableAccess,
    alpha: float | None,
    beta: float | None,
    consume_after_n_samples: int | None,
) -> None:
    """Compares the arguments with the settings of the table.

    Raises:
      InvalidArgumentError: If they differ; the text has both values.
    """
    table = f"table {access.table} of server {access.address}"
    if alpha is not None and access.alpha is None:
        raise InvalidArgumentError(
            f"alpha={alpha}, but {table} has the sampler {access.sampler_name}, which does not use "
            "priorities; leave alpha out"
        )
    if alpha is not None and not math.isclose(alpha, access.alpha or 0.0, rel_tol=1e-6):
        raise InvalidArgumentError(
            f"alpha={alpha} must be the exponent of {table}, which is {access.alpha}"
        )
    if beta is not None and access.alpha is None:
        raise InvalidArgumentError(
            f"beta={beta} is for tables that sample by priority; {table} does not. Give alpha, or "
            "leave beta out"
        )
    if (consume_after_n_samples or 0) != access.max_times_sampled:
        raise InvalidArgumentError(
            f"consume_after_n_samples={consume_after_n_samples} must be that of {table}, which is "
            f"{access.max_times_sampled or None}"
        )
