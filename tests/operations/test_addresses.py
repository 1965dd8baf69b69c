# SPDX-License-Identifier: Apache-2.0
"""Every command that talks to a server, with every kind of address."""

import json
import socket

import numpy as np
import pytest

import reverb
from reverb import command, testing
from reverb.cluster import group_checkpoint
from reverb.command import addresses
from reverb.errors import InvalidArgumentError
from support.certificates import Certificates
from support.commands import commands_of_servers, positional, write_dataset

# Through the network, also to a server of this process.
HOST = "127.1"
GROUPS = ("shards:///", "shards+grpcs:///")
ONE = ("", "grpcs://", "unix:", "dns:///", "ipv4:")
KINDS = (*ONE, *GROUPS)
# Options, and what the command says when it is done.
CHANGES = {
    "configure": (["--table", "t", "--max-size", "50"], "max_size of table t is 50 now, not "),
    "pause": (["--table", "t"], "inserts and samples of table t are paused"),
    "resume": (["--table", "t"], "inserts and samples of table t continue"),
    "reset": (["--table", "t", "--yes"], " is empty: it had "),
    "checkpoint": ([], "saved /"),
    "import": (
        ["--table", "t", "--items", "transitions", "--no-resume"],
        "3 items of 1 episodes (3 steps) written to table t",
    ),
    "drain": ([], " is drained: all streams have ended"),
}
READS = ("inspect", "export", "why", "top")
SIZES = (3, 4)


def test_every_command_is_tried():
    assert {*CHANGES, *READS} == commands_of_servers()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


class Servers:
    """Two servers with 3 and 4 items, an address of a kind, and commands on it."""

    def __init__(self, kind, start, certificates, tmp_path, capsys):
        options, self.flags, client_options = {}, [], {}
        if "grpcs" in kind:
            pair = certificates.good()
            options["tls"] = reverb.ServerTls(pair.cert, pair.key)
            self.flags = ["--tls-ca", str(certificates.ca), "--tls-server-name", "localhost"]
            tls = reverb.ClientTls(ca=certificates.ca, server_name="localhost")
            client_options = {"tls": tls}
        self.servers = []
        for index in range(2):
            if kind == "unix:":
                options["unix_path"] = str(tmp_path / f"{index}")
            table = testing.table("t", max_size=100)
            self.servers.append(start(table, host="127.0.0.1", **options))
        self.places = [f"{HOST}:{server.port}" for server in self.servers]
        scheme = "grpcs://" if "grpcs" in kind else ""
        self.clients = [
            reverb.Client(scheme + place, connect_timeout_s=20, **client_options)
            for place in self.places
        ]
        for client, size in zip(self.clients, SIZES, strict=True):
            client.insert_batch({"x": np.zeros((size, 2))}, {"t": np.ones(size)})
        self.several = scheme + ",".join(self.places)
        self.num_items = sum(SIZES) if kind in GROUPS else SIZES[0]
        if kind == "unix:":
            self.address = f"unix:{tmp_path / '0'}"
        elif kind == "ipv4:":
            self.address = f"ipv4:127.0.0.1:{self.servers[0].port}"
        else:
            self.address = kind + (",".join(self.places) if kind in GROUPS else self.places[0])
        self._capsys = capsys

    def run(self, name, *options, address=None):
        """Runs a command: `code, out, err = servers.run("why")`."""
        code = command.main(
            [name, *positional(name, address or self.address), *options, *self.flags]
        )
        return code, *self._capsys.readouterr()

    def sizes(self):
        return [client.server_info()["t"].current_size for client in self.clients]

    def are_draining(self):
        return [client.status().draining is not None for client in self.clients]


@pytest.fixture
def servers(start, certificates, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path)
    return lambda kind: Servers(kind, start, certificates, tmp_path, capsys)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_shown_is_shown_of_every_address(servers, kind, tmp_path):
    made = servers(kind)
    code, out, err = made.run("inspect", "--json", "--no-progress")
    assert (code, err) == (0, "")
    report = json.loads(out)["tables"]["t"]
    assert (report["size"], report["items"]["num_items"]) == (made.num_items, made.num_items)
    code, out, _ = made.run("why", "--json")
    told = json.loads(out)
    assert (code, told["server"]) == (0, made.address)
    assert told["tables"]["t"]["state"] == "flowing"
    code, out, _ = made.run("top", "--once")
    assert code == 0
    assert out.startswith(made.address)
    assert ("Shards" in out) == (kind in GROUPS)
    options = ["--table", "t", "--format", "npz", "--output", str(tmp_path / "out.npz")]
    code, out, _ = made.run("export", *options)
    assert (code, out.split()[0]) == (0, f"{made.num_items}")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_changed_is_changed_at_every_address(servers, kind):
    made = servers(kind)
    is_concerned = [True, kind in GROUPS]
    for name, (options, words) in CHANGES.items():
        code, out, err = made.run(name, *options)
        assert (code, err) == (0, ""), (name, out)
        assert words in out
        tables = [client.status().tables["t"] for client in made.clients]
        if name == "configure":
            changed = [table.max_items == (25 if kind in GROUPS else 50) for table in tables]
        elif name == "pause":
            changed = [table.inserting.paused is not None for table in tables]
        elif name == "resume":
            changed = is_concerned
            assert all(table.inserting.paused is None for table in tables)
        elif name == "checkpoint":
            saved = [client.checkpoint_status().num_saved for client in made.clients]
            changed = [count == 1 for count in saved]
        elif name == "import":
            changed = is_concerned
            # The reset before has left the second server as it was, if it is none of a group.
            assert sum(table.items for table in tables) == (3 if kind in GROUPS else 3 + SIZES[1])
        elif name == "reset":
            changed = [table.items == 0 for table in tables]
        else:
            changed = made.are_draining()
        assert changed == is_concerned, name


@pytest.mark.parametrize("scheme", ["", "grpcs://"])
def test_several_servers_are_shown_each_under_its_name(servers, scheme):
    made = servers(scheme)
    names = [scheme + place for place in made.places]
    code, out, _ = made.run("inspect", "--json", "--no-items", address=made.several)
    reports = json.loads(out)["servers"]
    assert (code, [report["source"] for report in reports]) == (0, names)
    assert [report["tables"]["t"]["size"] for report in reports] == list(SIZES)
    code, out, _ = made.run("inspect", "--no-items", address=made.several)
    assert [line for line in out.splitlines() if line.startswith("server ")] == [
        f"server {name}, 1 table" for name in names
    ]
    code, out, _ = made.run("why", address=made.several)
    assert (code, out.splitlines()[::3]) == (0, names)
    assert all(line.startswith("  t  flowing  ") for line in out.splitlines()[1::3])
    assert out.splitlines()[2::3] == ["  checkpoints: None was saved yet."] * 2
    code, out, _ = made.run("why", "--json", address=made.several)
    assert [it["server"] for it in json.loads(out)["servers"]] == names
    code, out, _ = made.run("top", "--once", address=made.several)
    heads = [line.split()[0] for line in out.splitlines() if "  version " in line]
    assert (code, heads) == (0, names)
    code, out, _ = made.run("top", "--once", "--json", address=made.several)
    statuses = json.loads(out)["servers"]
    assert [it["server"] for it in statuses] == names
    assert [it["status"]["tables"][0]["numItems"] for it in statuses] == ["3", "4"]


def test_of_several_servers_one_that_is_down_is_named(servers):
    made = servers("")
    made.servers[1].stop()
    down = made.places[1]
    code, out, _ = made.run("why", "--timeout", "0.5", address=made.several)
    assert code == 5
    assert out.splitlines()[1].startswith("  t  flowing  ")
    assert out.splitlines()[3] == down
    assert out.splitlines()[4].startswith("  no answer: ")
    code, out, _ = made.run("inspect", "--timeout", "0.5", address=made.several)
    assert (code, f"server {down}: no answer: " in out) == (5, True)
    code, out, _ = made.run("top", "--once", "--timeout", "0.5", address=made.several)
    assert (code, f"{down}  no answer: " in out) == (5, True)
    made.servers[0].stop()
    code, _, err = made.run("why", "--timeout", "0.5", address=made.several)
    assert (code, made.places[0] in err) == (1, True)


@pytest.mark.parametrize("name", [*CHANGES, "export"])
def test_what_would_reach_one_of_several_is_refused(servers, name, tmp_path):
    made = servers("")
    options = CHANGES.get(name, ([], ""))[0]
    if name == "export":
        options = ["--table", "t", "--format", "npz", "--output", str(tmp_path / "out")]
    code, out, err = made.run(name, *options, address=made.several)
    assert (code, out) == (1, "")
    assert f"{made.several} leads to 2 servers" in err
    assert f"({', '.join(made.places)})" in err
    assert (made.sizes(), made.are_draining()) == (list(SIZES), [False, False])
    assert not (tmp_path / "out").exists()


def test_a_name_with_several_addresses_is_several_servers(servers, monkeypatch):
    made = servers("")
    port = made.servers[0].port
    known = {"two.example": ["127.0.0.1", "127.0.0.2"], "both.example": ["127.0.0.1", "::1"]}

    def found(host, port, **_):
        kinds = [socket.AF_INET6 if ":" in ip else socket.AF_INET for ip in known[host]]
        pairs = zip(kinds, known[host], strict=True)
        return [(kind, socket.SOCK_STREAM, 6, "", (ip, port)) for kind, ip in pairs]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    places = [f"127.0.0.1:{port}", f"127.0.0.2:{port}"]
    assert addresses.servers_of(f"dns:///two.example:{port}") == places
    assert addresses.servers_of(f"grpcs://two.example:{port}") == [f"grpcs://{it}" for it in places]
    one = f"both.example:{port}"
    assert addresses.servers_of(one) == [one], "one machine has an address of each kind"
    code, _, err = made.run("drain", address=f"two.example:{port}")
    assert (code, "leads to 2 servers" in err) == (1, True)
    assert made.are_draining() == [False, False]


@pytest.mark.parametrize("kind", GROUPS)
def test_one_shard_is_drained(servers, kind):
    made = servers(kind)
    code, out, _ = made.run("drain", "--shard", "1")
    scheme = "grpcs://" if "grpcs" in kind else ""
    assert (code, out) == (
        0,
        f"shard 1 ({scheme}{made.places[1]}) is drained: all streams have ended\n",
    )
    assert made.are_draining() == [False, True]
    code, _, err = made.run("drain", "--shard", "2")
    assert (code, "has no shard 2; it has: 0, 1" in err) == (1, True)


def test_a_shard_of_one_server_is_refused(servers):
    made = servers("")
    code, _, err = made.run("drain", "--shard", "0")
    assert (code, "--shard 0 needs the address of a group" in err) == (1, True)
    assert made.are_draining() == [False, False]


def test_help_names_the_addresses(capsys):
    for name in (*READS, *CHANGES):
        with pytest.raises(SystemExit):
            command.main([name, "--help"])
        told = " ".join(capsys.readouterr().out.split())
        for words in ("HOST:PORT", "grpcs://", "unix:///", "dns:///", "ipv4:", "shards:///"):
            assert words in told, (name, words)
        assert ("each is shown under its name" in told) == (name in ("inspect", "why", "top"))
    with pytest.raises(SystemExit):
        command.main(["drain", "--help"])
    assert "--shard N" in capsys.readouterr().out


def group_of_two(start, root, *, saves_alone=False):
    """Saves a group of two servers with 3 and 4 items; returns the checkpoint of the group."""
    shards = {}
    for index, size in enumerate(SIZES):
        checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root / f"shard-{index}"))
        rate_limiter = reverb.rate_limiters.RateLimiter(1.0, 2, -10.0, 1000.0)
        table = testing.table("t", max_size=50, rate_limiter=rate_limiter)
        client = start(table, checkpointer=checkpointer).localhost_client()
        for value in range(size):
            client.insert(np.int64(10 * value + index), {"t": 1.0 + index})
        shards[index] = client
    if saves_alone:
        for client in shards.values():
            client.checkpoint()
        return root
    return group_checkpoint.save(root, "g", shards, epoch=1, slots=[]).path


@pytest.mark.parametrize("way", ["the checkpoint", "its directory", "shards alone", "one shard"])
def test_checkpoints_of_a_group_are_shown_and_exported(start, tmp_path, capsys, way):
    path = group_of_two(start, tmp_path / "g", saves_alone=way == "shards alone")
    path = {"its directory": tmp_path / "g", "one shard": tmp_path / "g" / "shard-1"}.get(way, path)
    size, parts = (4, 1) if way == "one shard" else (7, 2)
    assert command.main(["inspect", str(path), "--json", "--no-progress"]) == 0
    report = json.loads(capsys.readouterr().out)["tables"]["t"]
    assert (report["size"], report["max_size"]) == (size, 50 * parts)
    limiter = report["rate_limiter"]
    assert (limiter["num_inserts"], limiter["min_size_to_sample"]) == (size, 2 * parts)
    assert (limiter["min_diff"], limiter["max_diff"]) == (-10.0 * parts, 1000.0 * parts)
    assert report["items"]["num_items"] == size
    out = tmp_path / "out.npz"
    options = ["--table", "t", "--format", "npz", "--output", str(out), "--no-progress"]
    assert command.main(["export", str(path), *options]) == 0
    with np.load(out) as items:
        times = items["item/inserted_at"]
        assert len(times) == size
        assert (np.diff(times) >= 0).all(), "oldest first, whichever shard has it"


def test_the_servers_of_an_address():
    for address in ("unix:/a,b", "shards:///a:1,b:2", "shards+grpcs:///a:1,b:2", "[::1]:8000"):
        assert addresses.servers_of(address) == [address]
    assert addresses.servers_of("ipv4:1.2.3.4:1,5.6.7.8:2") == ["ipv4:1.2.3.4:1", "ipv4:5.6.7.8:2"]
    assert addresses.servers_of("grpcs://dns:///a:1,b:2") == [
        "grpcs://dns:///a:1",
        "grpcs://dns:///b:2",
    ]
    with pytest.raises(InvalidArgumentError, match="leads to 2 servers"):
        addresses.one_server("a:1,b:2", "drain")
