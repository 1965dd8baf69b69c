# SPDX-License-Identifier: Apache-2.0
"""Public names, commands and options that pages for users put in backticks exist."""

import argparse
import importlib
import inspect
import pathlib
import re

import pytest

import reverb
from reverb import command
from reverb.server_executable import command_line
from support.prose import prose

ROOT = pathlib.Path(__file__).parents[2]
# Design pages name private parts, the page of figures the programs that measure.
OTHERS = {"design", "performance.md"}
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")),
    *(page for page in sorted(ROOT.glob("docs/**/*.md")) if not OTHERS & set(page.parts)),
    *sorted(ROOT.glob("notebooks/*.ipynb")),
]
# Names of others, or of dm-reverb alone.
FOREIGN = {
    "reverb.NAMESPACE",  # A host in Kubernetes.
    "reverb.ReverbService",  # A service of gRPC.
    "reverb.cc.ops.gen_reverb_ops",  # "Missing", in the page about moving.
    "--no-deps",  # pip.
    "--publish",  # docker.
    "--data-source-path",  # slime.
    "--stop-timeout",
}
# Objects that pages write without their module, by the name of the object.
OBJECTS = {
    "Client": reverb.Client,
    "client": reverb.Client,
    "Server": reverb.Server,
    "Table": reverb.Table,
}
# What the clients of dm-reverb 0.14 have, too.
OF_DM_REVERB = {
    *("checkpoint", "insert", "mutate_priorities", "reset", "sample", "server_address"),
    *("server_info", "structured_writer", "trajectory_writer", "writer"),
}
_SPAN = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_NAME = re.compile(r"\b(reverb|selectors|rate_limiters|checkpointers)((?:\.\w+)+)")
_MEMBER = re.compile(rf"(?<![\w.])({'|'.join(OBJECTS)})\.([a-zA-Z]\w+)")
_CALL = re.compile(rf"(?<![\w.])({'|'.join(OBJECTS)})(?:\.(\w+))?\(([^()]*)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
# Files look like names.
_FILE = re.compile(r"\.(?:py|pyi|md|so|rs|proto|txtpb|pem|crt|key|json|toml|yml|yaml|service)\b")


def spans(path):
    """The texts in backticks of a page, outside of its blocks."""
    return [" ".join(found[2].split()) for found in _SPAN.finditer(prose(path))]


def is_public(name):
    """True if a dotted name can be imported, or stands in a module whose library is not here."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] == "reverb":
                continue  # A member of what is above it.
            return is_written(parts)
        except ImportError:
            return is_written(parts)
        for part in parts[end:]:
            try:
                found = getattr(found, part)
            except AttributeError:
                return False
            except ImportError:
                return is_written(parts)  # A name that needs TensorFlow.
        return True
    return False


def is_written(parts):
    """True if the first part that is no module stands in a file of the module before it."""
    path = ROOT
    for part in parts:
        if (path / part).is_dir():
            path = path / part
        elif (path / f"{part}.py").is_file():
            path = path / f"{part}.py"
        else:
            files = [path] if path.is_file() else path.glob("*.py")
            return any(re.search(rf"\b{part}\b", it.read_text(encoding="utf-8")) for it in files)
    return True


def subparsers(parser):
    """All commands of a parser, by name, with those below them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield name, below
                yield from ((f"{name} {more}", it) for more, it in subparsers(below))


COMMANDS = dict(subparsers(command._parser()))
SERVER = command_line._make_parser()


def options_of(*parsers):
    return {option for parser in parsers for option in parser._option_string_actions}


def faults(text):
    """The names in a text that do not exist."""
    for found in _NAME.finditer(_FILE.sub("", text)):
        name = found[0] if found[1] == "reverb" else f"reverb.{found[0]}"
        if not is_public(name):
            yield name
    for owner, member in _MEMBER.findall(text):
        if not hasattr(OBJECTS[owner], member) and not _FILE.search(text):
            yield f"{owner}.{member}"
    for owner, member, arguments in _CALL.findall(text):
        called = getattr(OBJECTS[owner], member, None) if member else OBJECTS[owner]
        given = set(re.findall(r"(?:^|[ ,])(\w+)=", arguments))
        if callable(called):
            yield from (f"{text}: {it}" for it in given - set(inspect.signature(called).parameters))
    if found := re.match(r"(?:\$ )?reverb ([a-z][\w-]*)(?: (.*))?", text):
        if found[1] not in COMMANDS:
            yield text
            return
        known = options_of(*(it for name, it in COMMANDS.items() if name.split()[0] == found[1]))
    elif text.startswith("reverb_server"):
        known = options_of(SERVER)
    elif text.startswith("--"):
        known = options_of(SERVER, command._parser(), *COMMANDS.values())
    else:
        return
    yield from set(_OPTION.findall(text)) - known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_names_commands_and_options_exist(page):
    assert not {fault for text in spans(page) for fault in faults(text)} - FOREIGN


def test_every_foreign_name_is_on_a_page():
    texts = [text for page in PAGES for text in spans(page)]
    assert [name for name in FOREIGN if not any(name in text for text in texts)] == []


@pytest.mark.parametrize(
    "text",
    [
        "reverb.Client.sample_batch(out=)",
        'selectors.Uniform(over="steps")',
        "reverb.adapters.torchrl.ReverbReplayBuffer",
        "reverb.TrajectoryDataset",
        "client.close()",
        "reverb inspect PATH --json",
        "reverb tls self-signed",
        "reverb_server --config-file tables.txtpb",
        "--token-file",
        "reverb/server.py",
    ],
)
def test_a_name_that_exists_is_no_fault(text):
    assert list(faults(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "reverb.ray.start",
        "reverb.Client.no_such_call",
        "selectors.NoSuch",
        "reverb.adapters.torchrl.NoSuch",
        "Server.no_such_call",
        "Server(no_such_argument=1)",
        "client.sample_batch(no_such_argument=)",
        "reverb nothing",
        "reverb inspect --no-such-option",
        "reverb_server --no-such-option",
        "--no-such-option",
    ],
)
def test_a_name_that_does_not_exist_is_a_fault(text):
    assert list(faults(text))


def test_the_page_about_moving_has_every_new_method():
    page = (ROOT / "docs/howto/migrating.md").read_text(encoding="utf-8")
    methods = {name for name in vars(reverb.Client) if not name.startswith("_")}
    assert methods > OF_DM_REVERB
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", page))))
    assert sorted(methods - OF_DM_REVERB - named) == []
