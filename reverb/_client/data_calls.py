# SPDX-License-Identifier: Apache-2.0
"""The constructor and the calls that insert items: their text for both clients; see `calls.py`."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from reverb._checks.compression import Compression
from reverb._client.connecting import (
    DEFAULT_CONNECT_TIMEOUT_S,
    DEFAULT_KEEPALIVE_S,
    DEFAULT_KEEPALIVE_TIMEOUT_S,
)
from reverb._client.rows import keys_of, sequence_of, step_of, steps_of
from reverb._server.tls import ClientTls
from reverb.shown_text import hidden, hidden_token


class Calls:
    def __init__(
        self,
        server_address: str,
        *,
        connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S,
        keepalive_s: float | None = DEFAULT_KEEPALIVE_S,
        keepalive_timeout_s: float = DEFAULT_KEEPALIVE_TIMEOUT_S,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        tls: ClientTls | None = None,
        pickle_token: bool = False,
        compression: Compression = "auto",
    ) -> None:
        """Makes a client; does not connect yet.

        Args:
          server_address: `host:port`, several of them separated by commas, or a gRPC target
            (`dns:///name:port`, `ipv4:127.0.0.1:1,127.0.0.1:2`). A name with several addresses also
            means several servers. With several servers, calls of each kind go to them in turn,
            starting with a random one. Names are resolved again when a server cannot be reached.
            `grpcs://` in front means TLS (`grpcs://host:port`, `grpcs://a:1,b:2`); with
            `REVERB_TLS=1` in the environment every address does, except with `grpc://` in front.
            `unix:///path/of/socket` (`unix:path` for a relative path) is a server on this machine
            that listens on a Unix socket. `shards:///a:1,b:2` is a group of servers that are used
            as one (`shards+grpcs:///` for TLS).
          connect_timeout_s: How long to wait for the first answer of the server, in seconds.
          keepalive_s: Interval of pings to the server while a call is open, in seconds, from 0.1
            to 86400; `None`: no pings. A dm-reverb server is never pinged; TCP detects after about
            half a minute that its machine has vanished.
          keepalive_timeout_s: A server that sends nothing for this long after a ping counts as
            lost, and its calls are retried, as after any lost connection. In seconds, from 0.1 to
            86400. A server that freezes for less than this is tolerated.
          token: The access token, if the server requires one. It is sent only to servers that TLS
            has verified, so the address must have `grpcs://`; or over a Unix socket to a server
            that runs as the same user or as root. `None`: the token in `token_file`, else that of
            the environment: `REVERB_TOKEN_FILE` names a file, `REVERB_TOKEN` is a token.
          token_file: Path of a file that holds a token; read again when it has changed.
          tls: How to check the server, for addresses with `grpcs://`. Settings that are not given
            come from the environment; see `ClientTls`.
          pickle_token: Whether pickles of this client contain `token`; anyone who can read such a
            pickle then has the token. `False`: where a pickle is loaded, the environment must
            have a token.
          compression: Compression of what `insert`, `insert_batch`, `insert_sequence` and writers
            store. `"auto"`: a column of a chunk is compressed if that saves an eighth of it or
            more. `"none"`: nothing is compressed; sampling does not decode, but frames of a game
            take up to 14 times the memory, also in checkpoints and on the network. Every client,
            also one of dm-reverb, reads both.

        Raises:
          InvalidArgumentError: If the address cannot be parsed, if a time is out of its range, if a
            token has invalid characters, if there are both `token` and `token_file`, if
            a file cannot be used, if a token or `tls` is given for an address without TLS, or if
            `compression` is another value. The token is not shown.
        """
        # Tracebacks may show the values of local variables.
        token, token_file = hidden_token(token), hidden(token_file)
        server_address = hidden(server_address)
        self._open(
            server_address,
            connect_timeout_s=connect_timeout_s,
            keepalive_s=keepalive_s,
            keepalive_timeout_s=keepalive_timeout_s,
            token=token,
            token_file=token_file,
            tls=tls,
            pickle_token=pickle_token,
            compression=compression,
        )

    @property
    def server_address(self) -> str:
        """Address of the server, as given to the constructor."""
        return self._server_address

    def insert(
        self,
        data: object,
        priorities: Mapping[str, float],
        *,
        removal_priorities: Mapping[str, float] | None = None,
    ) -> None:
        """Inserts one step, as an item of its own, into one or more tables.

        Blocks until the server has confirmed the items. The tables' rate limiters may delay that.

        Args:
          data: Nest of arrays. A leaf of shape `[...]` is sampled as a column `[1, ...]`.
          priorities: The tables to insert into, and the item's priority in each, a number or
            `reverb.MAX_PRIORITY`.
          removal_priorities: Priorities for the removers of these tables, if they are `MinHeap`,
            `MaxHeap` or `Prioritized`. Later updates of the priority do not change them.

        Raises:
          InvalidArgumentError: If `priorities` is empty, or if a table rejects a priority.
          SignatureMismatchError: If the data does not match a table's signature. Columns are
            matched by position, as in dm-reverb; names that differ are logged once for each table.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
          UnimplementedError: If the server, such as one of dm-reverb, does not know `MAX_PRIORITY`
            or removal priorities, and the call uses them. Nothing was inserted.
        """
        self._insert(step_of(self._flattener, data, priorities, removal_priorities))

    def insert_batch(
        self,
        data: object,
        priorities: Mapping[str, Any],
        *,
        removal_priorities: Mapping[str, Any] | None = None,
        keys: object = None,
        replace: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Inserts `B` steps, each as an item of its own, into one or more tables.

        Equal to `B` calls of `insert`, except that all rows count as one episode. Blocks until the
        server has confirmed all items. If Ctrl-C or an error ends the call, rows that were
        sent by then may be inserted all the same.

        With `keys`, the program finds its items again without remembering what this returns. If a
        table has an item with a key, that item gets the row's priority and keeps its data. With
        `replace=True` it is exchanged for the row, under one lock: priority, time of the insert,
        times sampled and place in the order are those of a new item. It waits for the rate limiter
        as an insert, and counts as one, unless the table has `max_times_sampled` and the old item
        had not been sampled `samples_per_insert` times. Samples that were taken before keep the old
        data.

        Example:
          >>> keys = [reverb.key_of(f"position {i}") for i in range(2)]
          >>> _ = client.insert_batch(np.zeros((2, 3)), {"table": 1.0}, keys=keys)
          >>> _ = client.insert_batch(np.ones((2, 3)), {"table": 1.0}, keys=keys, replace=True)

        Args:
          data: Nest of arrays `[B, ...]`; row `i` is the data of item `i`. Its columns are matched
            with those of a table's signature by their names, if both have names.
          priorities: The tables to insert into, and the priorities `[B]` in each, or one number for
            all rows.
          removal_priorities: As in `insert`: numbers `[B]` for a table, or one for all rows.
          keys: A key of the program's own for each row, integers `[B]` below 2^64, such as
            `reverb.key_of(text)`; the same in all tables. Rows are inserted in order, so of equal
            keys the last row counts. Default: random keys.
          replace: Whether a row replaces the item that has its key.
          timeout_ms: Longest wait for the tables: rate limiters, full tables and pauses. The server
            refuses rows that still wait then; with 0, those that it cannot insert at once. Default:
            none.

        Returns:
          The keys of the new items for each table, uint64 `[B]`. Empty for a group of servers,
          whose keys are drawn for each shard.

        Raises:
          DeadlineExceededError: After `timeout_ms`. The text says how many rows were not inserted,
            which are the last ones: with one row and table, nothing was. It is the server's word,
            which this call waits for also if it comes late.
          FailedPreconditionError: If `keys` are given for a table with rollouts.
          InvalidArgumentError: If leaves, priorities or keys differ in `B`, if `replace` has no
            `keys`, or if `keys` or `timeout_ms` are given for a group of several servers;
            otherwise as `insert`.
          SignatureMismatchError: If dtypes or shapes do not match a table's signature, or if the
            signature has no column of a name.
          UnavailableError: As `insert`. With `timeout_ms` also if rows were refused after a lost
            connection, over which they may have been inserted, or if the server reads nothing
            for 10 s after that time, because its memory is used up.
          UnimplementedError: As `insert`; and if the server does not know `replace` or
            `timeout_ms`.
        """
        steps = steps_of(
            self._flattener, data, priorities, removal_priorities, keys, replace, timeout_ms
        )
        return keys_of(priorities, self._insert_rows(steps))

    def insert_sequence(
        self,
        data: object,
        priorities: Mapping[str, float],
        *,
        removal_priorities: Mapping[str, float] | None = None,
        key: int | None = None,
        replace: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Inserts a whole sequence, such as an episode, as one item into one or more tables.

        Blocks until the server has confirmed the items. The tables' rate limiters may delay that.
        Needs no history and no writer. Long columns are sent and stored in chunks of 64 steps, but
        of 4 KiB at least and 32 KiB at most.

        Example:
          >>> client.insert_sequence([np.zeros((5, 4)), np.arange(5.0)], {"table": 1.0})

        Args:
          data: Nest of arrays `[T, ...]`, which may differ in `T`. Its columns are matched with
            those of a table's signature by their names, if both have names.
          priorities: As in `insert`.
          removal_priorities: As in `insert`.
          key: A key of the program's own for the item, as `keys` of `insert_batch`.
          replace: Whether it replaces the item that has its key, as in `insert_batch`.
          timeout_ms: As in `insert_batch`.

        Raises:
          DeadlineExceededError: As `insert_batch`.
          FailedPreconditionError: As `insert_batch`.
          InvalidArgumentError: If a leaf has no steps; the text names it. Otherwise as `insert`,
            and as `insert_batch` for `key`, `replace` and `timeout_ms`.
          SignatureMismatchError: If dtypes or shapes do not match a table's signature, or if the
            signature has no column of a name.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers, and as `insert_batch` with `timeout_ms`.
          UnimplementedError: As `insert_batch`.
        """
        sequence = sequence_of(
            self._flattener, data, priorities, removal_priorities, key, replace, timeout_ms
        )
        self._insert(sequence)
