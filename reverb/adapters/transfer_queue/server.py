# SPDX-License-Identifier: Apache-2.0
"""The server with the two tables: found, or started."""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import reverb
from reverb.adapters.transfer_queue.entries import ENTRIES
from reverb.adapters.transfer_queue.values import VALUES
from reverb.errors import FailedPreconditionError

__all__ = ["ADDRESS_VARIABLE", "Connection", "make_tables"]

ADDRESS_VARIABLE = "REVERB_TQ_ADDRESS"
# The group of servers on a Ray cluster; the actor is called as TransferQueue's.
_GROUP = "transfer_queue"
_CONTROLLER, _NAMESPACE = "TransferQueueController", "transfer_queue"
_MAX_ITEMS = 2**31 - 1


def make_tables() -> list[reverb.Table]:
    """Makes the tables of a server for this module. A full server lets puts wait."""
    fifo = reverb.selectors.Fifo
    limiter = reverb.rate_limiters.MinSize
    return [
        reverb.Table(name, fifo(), fifo(), _MAX_ITEMS, limiter(1), when_full="wait")
        for name in (VALUES, ENTRIES)
    ]


class Connection:
    """A client of the server, and what this process has started.

    The address is that of the environment variable `REVERB_TQ_ADDRESS`, else
    `conf["backend"]["Reverb"]["address"]`. Without one the server is a group of one on Ray, if Ray
    runs, which is found by its name; other entries of `conf["backend"]["Reverb"]` are arguments of
    `reverb.adapters.ray.start`. Else it is one in this process.

    Attributes:
      client: The client.
    """

    def __init__(self, conf: Any = None) -> None:
        self._stops: list[Callable[[], Any]] = []
        options = _settings(conf)
        address = os.environ.get(ADDRESS_VARIABLE) or options.pop("address", None)
        ray = _running_ray()
        if address is None and ray is None:
            server = reverb.Server(make_tables())
            self._stops.append(server.stop)
            self.client = server.localhost_client(compression="none")
            return
        if address is None:
            address = self._address_on_ray(options)
        self.client = reverb.Client(address, compression="none")
        if ray is not None:
            self._start_controller(ray, address)

    def close(self) -> None:
        """Stops what this process has started."""
        for stop in self._stops:
            stop()
        self._stops.clear()

    def _address_on_ray(self, options: dict[str, Any]) -> str:
        from reverb.adapters.ray import get_group, start

        try:
            group = get_group(_GROUP)
        except FailedPreconditionError:
            try:
                options = {"resources_per_shard": {"num_cpus": 0}} | options
                group = start(make_tables, num_shards=1, name=_GROUP, **options)
                self._stops.append(group.stop)
            except FailedPreconditionError:  # Another process was faster.
                group = get_group(_GROUP)
        return group.address

    def _start_controller(self, ray: Any, address: str) -> None:
        from reverb.adapters.transfer_queue.controller import TransferQueueController

        try:
            ray.get_actor(_CONTROLLER, namespace=_NAMESPACE)
        except ValueError:
            actor = (
                ray.remote(num_cpus=0)(TransferQueueController)
                .options(
                    name=_CONTROLLER,
                    namespace=_NAMESPACE,
                    lifetime="detached",
                    max_restarts=-1,
                    get_if_exists=True,
                )
                .remote(address)
            )
            self._stops.insert(0, lambda: ray.kill(actor))


def _settings(conf: Any) -> dict[str, Any]:
    for name in ("backend", "Reverb"):
        conf = conf.get(name) if conf is not None else None
    return dict(conf) if isinstance(conf, Mapping) or conf is not None else {}


def _running_ray() -> Any:
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None
