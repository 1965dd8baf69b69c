# SPDX-License-Identifier: Apache-2.0
"""The server, which serves tables."""

import ipaddress
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reverb._checks.arguments import as_path, check_integer, check_number
from reverb._checks.byte_sizes import parse_byte_size_or_share
from reverb._checks.compression import Compression
from reverb._checks.pickles import not_pickled
from reverb._client.connecting import DEFAULT_KEEPALIVE_S, DEFAULT_KEEPALIVE_TIMEOUT_S
from reverb._client.small_calls import sync_request
from reverb._server.credentials import ServerSecurity
from reverb._server.first_process import end_at_signals
from reverb._server.limits import Limits
from reverb._server.shard import Shard, ShardPlace
from reverb._server.start_config import StartConfig
from reverb._server.store import Store
from reverb._server.table import Table, TableExtensionBase
from reverb._server.table_change import ChangedSetting, TableChange, to_request
from reverb._server.tls import ServerTls
from reverb.checkpointers import CheckpointerBase, CheckpointerOptions
from reverb.client import Client
from reverb.core import native
from reverb.errors import FailedPreconditionError, InvalidArgumentError
from reverb.reverb_types import TableInfo
from reverb.server_status import ServerStatus, SyncResult
from reverb.shown_text import hidden, shown, type_name

if TYPE_CHECKING:
    from reverb.cluster.running_group import RunningGroup

__all__ = ["Server", "Table", "TableExtensionBase"]

MAX_PORT = 65_535

_logger = logging.getLogger(__name__)

# A century; clocks overflow with longer intervals.
MAX_CHECKPOINT_INTERVAL_S = 3_155_760_000
MAX_DRAIN_S = 86_400


def _coordinator(address: str) -> object:
    """The coordinator that the first shard of a group runs."""
    # Most servers are no shards.
    from reverb.cluster.coordinator import Coordinator

    return Coordinator(address)


def _part_of_group(
    shard: Shard, tables: Sequence[Table]
) -> "tuple[ShardPlace, list[Table], RunningGroup]":
    """The place of a shard, its parts of tables, with what was changed in its group, and that."""
    # Most servers are no shards.
    from reverb.cluster.running_group import RunningGroup, with_settings

    group = RunningGroup(shard)
    found = group.changed_map()
    if found is not None:
        tables = with_settings(tables, found)
    return shard.place(tables, found), shard.split(tables), group


def _reachable(host: str | None) -> str:
    """Returns a host by which this machine reaches a server that listens on `host`."""
    try:
        address = ipaddress.ip_address(host or "::")
    except ValueError:
        return str(host)  # A name.
    if address.is_unspecified:
        return "localhost"
    return f"[{address}]" if address.version == 6 else str(address)


class Server:
    """Serves tables over gRPC, and without a socket to clients in the same process.

    The server stops when the object is deleted: keep a reference, or call `wait`.

    Example:
      >>> server = Server([Table.queue("queue", max_size=10)])
      >>> client = server.localhost_client()
      >>> server.stop()
    """

    def __init__(
        self,
        tables: Sequence[Table] | None = None,
        port: int | None = None,
        checkpointer: CheckpointerBase | None = None,
        *,
        host: str | None = None,
        checkpoint_interval_s: float | None = None,
        checkpoint_on_stop: bool = False,
        keepalive_s: float | None = DEFAULT_KEEPALIVE_S,
        keepalive_timeout_s: float = DEFAULT_KEEPALIVE_TIMEOUT_S,
        limits: Limits | None = None,
        max_bytes: int | str | None = None,
        http_port: int | None = None,
        http_host: str = "127.0.0.1",
        tls: ServerTls | None = None,
        tokens: str | os.PathLike[str] | None = None,
        insecure_tokens: bool = False,
        lease_grace_s: float = 10.0,
        http_tls: bool = False,
        unix_path: str | os.PathLike[str] | None = None,
        shard: Shard | None = None,
        store: Store | None = None,
    ) -> None:
        """Loads the latest checkpoint if there is one, then starts to serve.

        Args:
          tables: At least one table; names must be unique.
          port: TCP port; `None` or 0: any free port.
          checkpointer: Where to save the tables, and what to load. `None`: nothing is loaded, and
            the first save makes a temporary directory.
          host: Address to listen on; `None`: all addresses.
          checkpoint_interval_s: Interval of automatic saves, in seconds, from the start of one save
            to the start of the next. A save that fails is logged, and retried after the interval.
          checkpoint_on_stop: Whether `stop` saves first. A server that is deleted without `stop`
            does not save.
          keepalive_s: Interval of pings to a client while it has an open call, in seconds, from 0.1
            to 86400; `None`: no pings. A dm-reverb client is never pinged; TCP detects after about
            half a minute that its machine has vanished.
          keepalive_timeout_s: A client that sends nothing for this long after a ping counts as
            lost: its calls end, and its pending inserts and samples are cancelled. In seconds, from
            0.1 to 86400. A client that freezes for less than this is tolerated.
          limits: Limits for a single peer; `None`: `Limits()`.
          max_bytes: Memory for all chunks and items, at least 16 MiB: bytes, a size such as
            "12GiB", or a share such as "80%" of the memory that the process may use (the machine's
            memory, or the smallest limit of its control groups). `None`: no limit. From 90 % on,
            the table that exceeds its share the most evicts items, except tables whose inserts
            wait; from 97 % on, writers wait, and everything else continues; from 100 % on, the
            server ends the insert streams that hold the most chunks for later items, and their
            writers retry. A table's share is its `max_bytes`, or an equal part of the rest.
          http_port: A second TCP port, for HTTP: `/` is a page for people, `/metrics` is for
            Prometheus, `/livez` and `/readyz` are for probes, `/api/status` is the status as JSON.
            It opens before a checkpoint is loaded; until that is done, `/readyz` answers 503. 0:
            any free port; `None`: no HTTP port.
          http_host: Address of the HTTP port. By default only this machine can reach it, because
            it shows everything to all visitors; "0.0.0.0" is all addresses. With `tokens`, page and
            status need a token with the right `sample`; if other machines can reach the address and
            it has no TLS, it then serves only metrics and probes.
          tls: Certificate and key; clients then write `grpcs://` in front of the address. `None`:
            no TLS.
          tokens: Path of a file with the tokens and their rights, see "Securing a server" in the
            documentation. Clients without a token are refused. `None`: anyone who can reach
            the port may do everything. Clients in this process never need a token.
          lease_grace_s: How long a client that was lost keeps the items with rollouts that it has
            taken (`Client.take`), in seconds, from 0 to 86400; then others can take them.
          insecure_tokens: Whether tokens may cross a network without TLS, where others can read and
            use them. `False`: a server with tokens and without TLS can listen only on this
            machine's own addresses.
          http_tls: Whether the HTTP port speaks TLS, with the certificate of `tls`.
          unix_path: Path of a Unix socket to listen on besides the port, for clients on this
            machine; they write `unix:///run/reverb/socket`. At most 107 bytes on Linux, as an
            absolute path. Its directory is created with mode 0700 if it is missing, and refused if
            other users may write to it. The socket of a server that has ended is replaced, and
            `stop` removes it. It has no TLS; tokens are checked as on the port. `None`: no socket.
          shard: The server's position in a group of servers that share the load of the same tables.
            `tables` then have the sizes and rate limiters of the whole group; the server makes its
            parts of them and leaves the arguments unchanged. A checkpoint must be of these parts.
            `None`: the server is no shard, until a group takes it.
          store: A directory on disk, from which the tables come back after a crash, and which has
            data that does not fit into `max_bytes`. Without a journal it needs `max_bytes`.
            `None`: all data stays in memory.

        Raises:
          InvalidArgumentError: If there is no table, if names are not unique, if a table was given
            to a server before, if the port is out of its range or in use, if the Unix socket cannot
            be opened (the text says why), if a time or a limit is out of its range, if the
            checkpoint has a table that is not among `tables`, if a certificate, a key or the file
            of tokens is bad (names file and line), if tokens would cross a network without TLS, if
            a rate limiter is too fine for the number of shards, or if there is a store without
            `max_bytes`, or one whose directory cannot be used (the text says why).
          DataLossError: If the checkpoint is damaged; the text names the file and the position.
          FailedPreconditionError: If the checkpoint cannot be read, if an item does not match the
            settings of its table, or if another running server uses the checkpoint or the
            checkpointer's name; the text names directory, checkpoint and process.
        """
        # Tracebacks may show the values of local variables.
        tokens, unix_path = hidden(tokens), hidden(unix_path)
        host, http_host, max_bytes = hidden(host), hidden(http_host), hidden(max_bytes)
        if tables is not None and not isinstance(tables, Iterable):
            raise TypeError(f"tables must be a list of Table objects, got {type_name(tables)}")
        tables = list(tables or ())
        for table in tables:
            if not isinstance(table, Table):
                raise TypeError(f"tables must hold Table objects, got {table!r}")
        if limits is not None and not isinstance(limits, Limits):
            raise TypeError(f"limits must be a reverb.Limits, got {limits!r}")
        if store is not None and not isinstance(store, Store):
            raise TypeError(f"store must be a reverb.Store, got {type_name(store)}")
        if store is not None and not store.journal and max_bytes is None:
            raise InvalidArgumentError(
                "Store(journal=False) needs max_bytes of the Server: without it nothing would go "
                "to disk"
            )
        port = 0 if port is None else check_integer("port", port, allows_bool=True)
        if host is not None and not isinstance(host, str):
            raise TypeError(f"host must be a str, got {type_name(host)}")
        if checkpointer is not None and not hasattr(checkpointer, "internal_checkpointer"):
            # The class is that of dm-reverb's error.
            raise AttributeError(
                "checkpointer must be an object of reverb.checkpointers, got "
                f"{type_name(checkpointer)}, which has no internal_checkpointer"
            )
        if keepalive_s is not None:
            check_number("keepalive_s", keepalive_s)
        check_number("keepalive_timeout_s", keepalive_timeout_s)
        if checkpoint_interval_s is not None:
            check_number("checkpoint_interval_s", checkpoint_interval_s)
        if not 0 <= port <= MAX_PORT:
            raise InvalidArgumentError(f"port must be from 0 to {MAX_PORT}, got {port}")
        http_port = None if http_port is None else check_integer("http_port", http_port)
        if http_port is not None and not 0 <= http_port <= MAX_PORT:
            raise InvalidArgumentError(f"http_port must be from 0 to {MAX_PORT}, got {http_port}")
        if checkpoint_interval_s is not None and not (
            0 < checkpoint_interval_s <= MAX_CHECKPOINT_INTERVAL_S
        ):
            raise InvalidArgumentError(
                "checkpoint_interval_s must be above 0 and at most "
                f"{MAX_CHECKPOINT_INTERVAL_S}, got {checkpoint_interval_s}"
            )
        security = ServerSecurity.of_arguments(tls, tokens, insecure_tokens, http_tls, http_port)
        place, group = None, None
        if shard is not None:
            if not isinstance(shard, Shard):
                raise TypeError(f"shard must be a reverb.cluster.Shard, got {shard!r}")
            place, tables, group = _part_of_group(shard, tables)
        self._tables = tables
        self._checkpointer = checkpointer
        self._checkpoint_on_stop = bool(checkpoint_on_stop)
        if checkpointer is None:
            options = CheckpointerOptions(path=None)
        else:
            options = checkpointer.internal_checkpointer()
        self._is_stopped = False
        self._coordinator: Any = None
        self._host, self._has_tls = host, tls is not None
        config = StartConfig(
            port=port,
            host=host,
            checkpoints=options,
            checkpoint_interval_s=checkpoint_interval_s,
            lease_grace_s=_check_lease_grace(lease_grace_s),
            keepalive_s=keepalive_s,
            keepalive_timeout_s=keepalive_timeout_s,
            limits=Limits() if limits is None else limits,
            max_bytes=parse_byte_size_or_share("max_bytes", max_bytes),
            store=store,
            http_port=http_port,
            http_host=http_host,
            security=security,
            unix_path=None if unix_path is None else as_path("unix_path", unix_path),
            shard=place,
        )
        self._server = native.Server([table.internal_table for table in tables], config)
        if group is not None:
            with self.localhost_client() as own:
                group.tell_address(own)
        if shard is not None and shard.is_coordinated and shard.index == 0 and shard.address:
            self._coordinator = _coordinator(shard.address)

    @property
    def port(self) -> int:
        """The TCP port that the server listens on."""
        return self._server.port()

    @property
    def http_port(self) -> int | None:
        """The port of metrics and probes; `None` if there is none."""
        return self._server.http_port()

    @property
    def unix_address(self) -> str | None:
        """The address of its Unix socket, for clients on this machine; `None` if it has none.

        It is like `unix:///run/reverb/socket`, with `%20` for a space and the like, which all
        clients understand.
        """
        return self._server.unix_address()

    @property
    def address(self) -> str:
        """The address that a client on this machine passes to `Client`.

        That of the Unix socket, if there is one. Otherwise host and port: `localhost:8000`, or the
        `host` of the server if it is a single address, with `grpcs://` in front if the server has
        TLS; its certificate must be valid for that host. A client in the same process uses a
        socket only for an address of a network.

        Example:
          >>> server = Server([Table.queue("queue", max_size=10)])
          >>> with Client(server.address) as client:
          ...     client.tables()
          ['queue']
        """
        if self.unix_address is not None:
            return self.unix_address
        scheme = "grpcs://" if self._has_tls else ""
        return f"{scheme}{_reachable(self._host)}:{self.port}"

    def status(self, *, with_streams: bool = False) -> ServerStatus:
        """Everything that the server counts; like `Client.status`, without a connection."""
        return ServerStatus.from_serialized_proto(self._server.status(bool(with_streams)))

    def sync(self, note: bytes = b"", timeout_ms: int | None = None) -> SyncResult:
        """Waits until all is on the disk; like `Client.sync`, without a connection."""
        _, request, _ = sync_request(note, timeout_ms)
        return SyncResult._of_answer(self._server.sync(request), note)

    def server_info(self) -> dict[str, TableInfo]:
        """Settings and counters of all tables; like `Client.server_info`, without a connection."""
        return {table.name: table.info for table in self._tables}

    def configure_tables(
        self, changes: Mapping[str, TableChange], *, dry_run: bool = False
    ) -> list[ChangedSetting]:
        """Changes settings of tables; like `Client.configure_tables`, without a connection."""
        request = to_request(changes, dry_run=dry_run)
        return ChangedSetting.all_of(self._server.configure_tables(request))

    def reload_security(self) -> list[str]:
        """Reads certificates, keys and tokens again, now.

        The server also checks the files every 10 s and applies changes. This call reports the
        outcome. New connections use the new certificate; open connections and streams continue, see
        `ServerTls.max_connection_age_s`. A token that is no longer in the file is refused at its
        next call. Blocks while the files are read.

        Returns:
          A line for each part (certificates, tokens) that has changed; an empty list if nothing
          has, or if the server has neither TLS nor tokens.

        Raises:
          InvalidArgumentError: If a file is bad; the text names file and line. This part stays
            unchanged; a good file of the other part is still applied.
        """
        return self._server.reload_security()

    def localhost_client(self, *, compression: Compression = "auto") -> Client:
        """Makes a client of this server, for use in the same process.

        It needs neither a token nor TLS. If it is pickled, the copy in another process connects
        without TLS.

        Args:
          compression: As in `Client`.

        Raises:
          InvalidArgumentError: If `compression` is another value.
        """
        return Client(f"localhost:{self.port}", compression=compression)

    @staticmethod
    def process_memory() -> int | None:
        """Returns how much memory this process may use, in bytes.

        That is the memory of the machine, or the smallest limit of the control groups of the
        process. A share in `max_bytes` refers to it. `None`: the system does not say.
        """
        return native.process_memory()

    def stop(self, drain_s: float = 0.0, *, final: bool = False) -> None:
        """Stops the server; waiting calls end with an error.

        Clients wait `connect_timeout_s` for a stopped server to come back. With `final` they do
        not: waiting calls, and those of writers and readers with an open stream, raise one short
        `UnavailableError` at once. In a group the other shards continue; the error comes once no
        shard answers. Clients of dm-reverb treat it as a restart.

        With `drain_s` it drains first, like `Client.drain`: no confirmed or sampled item is lost
        in transit, and clients retry, at another server if their address has several.

        With `checkpoint_on_stop` it saves first, and blocks meanwhile. A save that a client has
        requested is aborted. May be called more than once.

        Args:
          drain_s: How long to wait for the end of all streams, in seconds.
          final: Whether the server is not going to be started again, as at the end of a run.

        Raises:
          InvalidArgumentError: If `drain_s` is negative or above 86400; the server is not stopped
            then.
          DataLossError: If the last commit of the journal did not reach its disk. The server has
            stopped, and the text says how much is lost.
          FailedPreconditionError: If the save failed. Like the other errors of `Client.checkpoint`,
            which are possible too, it does not keep the server from stopping.
        """
        if not 0 <= check_number("drain_s", drain_s) <= MAX_DRAIN_S:
            raise InvalidArgumentError(
                f"drain_s must be at least 0 and at most {MAX_DRAIN_S}, got {drain_s}"
            )
        self._is_stopped = True
        save, self._checkpoint_on_stop = self._checkpoint_on_stop, False
        try:
            if drain_s:
                self._server.drain(float(drain_s), bool(final))
            if save:
                self._server.checkpoint()
        finally:
            if self._coordinator is not None:
                self._coordinator.stop()
            self._server.stop(bool(final))

    def wait(self) -> None:
        """Blocks until the server is stopped.

        Handles no signal but SIGINT (Ctrl-C): SIGTERM and SIGHUP end the process without a save,
        unless the program handles them, as the command `reverb_server` does. The same holds for the
        first process of a container, which would otherwise ignore them, if it waits in its main
        thread.

        Raises:
          KeyboardInterrupt: On Ctrl-C.
        """
        end_at_signals()
        self._server.wait()

    def __enter__(self) -> "Server":
        if self._is_stopped:
            raise FailedPreconditionError(
                "this server is stopped, and cannot start again; make a new one, with new tables"
            )
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __del__(self) -> None:
        server = self.__dict__.get("_server")  # Missing if the construction failed.
        if server is not None:
            if self._checkpoint_on_stop:
                _logger.warning(
                    "the server on port %d is dropped without stop(): it does not save its tables",
                    server.port(),
                )
            server.stop(False)

    __reduce__ = not_pickled("send its address, and make a Client of it there")

    @shown
    def __repr__(self) -> str:
        return repr(self._server)

    @shown
    def __str__(self) -> str:
        if "_server" not in self.__dict__:
            return "Server that was not started"
        return f"Server at {self.address} with {', '.join(map(str, self._tables))}"


def _check_lease_grace(seconds: float) -> float:
    if not 0 <= check_number("lease_grace_s", seconds) <= 86_400:
        raise InvalidArgumentError(
            f"lease_grace_s must be at least 0 and at most 86400, got {seconds}"
        )
    return float(seconds)
