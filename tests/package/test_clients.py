# SPDX-License-Identifier: Apache-2.0
"""Both clients have one text; `tools/generate_clients.py` writes it into them."""

import ast
import importlib.util
import pathlib
import subprocess
import sys

import pytest

from support.programs_as_modules import program_as_module

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator():
    """The program that writes the clients, as a module."""
    with program_as_module("tools/generate_clients.py") as module:
        yield module


def by_hand(generator, path):
    """The docstrings of a client, without its generated part."""
    before, _, after = generator.parted(path)
    for node in ast.walk(ast.parse(before + after)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node) or ""
            yield from (line.strip() for line in text.splitlines() if len(line.strip()) >= 20)


def test_the_clients_are_as_their_texts_say():
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("ruff is not installed")
    command = [sys.executable, "tools/generate_clients.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_docstring_stands_twice_by_hand(generator):
    ours, theirs = (set(by_hand(generator, it)) for it in (generator.BLOCKING, generator.AWAITED))
    assert theirs
    assert ours & theirs == set()


METHODS = '''
    def ask(self, table: str) -> bytes:
        """Asks.

        Example:
          >>> client.ask("a")
          b'a'

        Args:
          table: Which.
        """
        return self._client.call("Status", table)

    def sampler(self) -> None:
        return self._client.sampler(1)

    def twice(self) -> list[bytes]:
        def start() -> bytes:
            return self._client.shard_info()

        return [self.ask("a"), self._insert(start)]
'''


def test_what_waits_is_awaited(generator):
    methods = generator.awaited(METHODS)
    assert "Example" not in methods
    assert '        """Asks.\n\n        Args:\n' in methods
    assert "async def ask(" in methods
    assert 'return await self._call(_Core.call, "Status", table)' in methods
    # No call of `AsyncClient`.
    assert "    def sampler(" in methods
    assert "return self._client.sampler(1)" in methods
    assert "async def twice(" in methods
    assert "async def start(" in methods
    assert "return await self._call(_Core.shard_info)" in methods
    # `_insert` is a coroutine that stands in the client.
    assert '[await self.ask("a"), await self._insert(start)]' in methods


def test_an_attribute_of_an_answer_is_refused(generator):
    with pytest.raises(SystemExit, match=r"give self._client.call\(1\) a name before its x"):
        generator.awaited("    def ask(self) -> int:\n        return self._client.call(1).x\n")


def test_a_word_that_no_text_has_is_an_error(generator):
    with pytest.raises(SystemExit, match="no text has 'Blocks '"):
        generator.exchanged("Waits until", {"Blocks ": "Waits "})
