# SPDX-License-Identifier: Apache-2.0
"""Objects whose methods use writers, clients and servers while a call reads them.

Python runs code of the program in the middle of a call: to index, to compare the keys of a dict, to
make an array, to print, to free. A lock that is held meanwhile would stop the program for good.
"""

import pytest

from support.programs import Program

# It makes the call with an object for each method in turn. The method uses everything in another
# thread, and waits for it.
_PROGRAM = """
    import asyncio, contextlib, threading
    import numpy as np, reverb
    from reverb import aio, structured, testing

    server = reverb.Server([testing.table("t"), testing.table("u")])
    client = server.localhost_client()
    client.insert({"x": 1.0}, {"t": 1.0})
    writer = client.trajectory_writer(4)
    batched = client.batched_trajectory_writer(1, 4)
    sequence = client.sequence_writer("u", 2)
    patterned = client.structured_writer([structured.create_config(
        structured.pattern_from_transform({"x": None}, lambda it: {"x": it["x"][-1:]}), "u")])
    legacy = client.writer(4)

    USES = [
        lambda: writer.append({"x": 1.0}),
        lambda: (len(writer.history["x"]), writer.history["x"][-1:], str(writer.history["x"])),
        lambda: writer.create_item("t", 1.0, {"x": writer.history["x"][-1]}),
        lambda: writer.configure(("new",), num_keep_alive_refs=2, max_chunk_length=None),
        lambda: batched.append({"x": np.ones(1)}),
        lambda: batched.create_items("t", [1.0], {"x": batched.history["x"][-1]}),
        lambda: batched.configure(("new",), num_keep_alive_refs=2, max_chunk_length=None),
        lambda: sequence.append({"x": 1.0}, is_last=True),
        lambda: patterned.append({"x": 1.0}),
        lambda: legacy.append({"x": 1.0}),
        lambda: client.insert({"x": 1.0}, {"t": 1.0}),
        lambda: client.mutate_priorities("t", {1: 1.0}),
        lambda: client.sample_batch("t", 1),
        lambda: (repr(server), repr(client), client.size("t")),
    ]

    def use():
        for one in USES:
            # A step may be open, and an item may be gone.
            with contextlib.suppress(reverb.ReverbError):
                one()

    def method(name, answer):
        def method(*_, **__):
            seen.add(name)
            using = threading.Thread(target=use)
            using.start()
            using.join()
            return answer()
        return method

    class Kind(type):
        __repr__ = method("type", lambda: "It")

    METHODS = {
        "__index__": lambda: 0, "__int__": lambda: 0, "__float__": lambda: 0.0,
        "__bool__": lambda: True, "__len__": lambda: 1, "__iter__": lambda: iter([1]),
        "__getitem__": lambda: 1, "__repr__": lambda: "it", "__str__": lambda: "it",
        "__eq__": lambda: False, "__hash__": lambda: hash("x"), "__del__": lambda: None,
        "__array__": lambda: np.ones(()), "__dlpack__": lambda: np.ones(1).__dlpack__(),
    }

    async def insert(data):
        async with aio.Client(client.server_address) as other:
            await other.insert(data, {"t": 1.0})

    seen = set()
    use()
    for name, answer in METHODS.items():
        methods = {"__hash__": lambda self: hash("x"), name: method(name, answer)}
        if name == "__dlpack__":
            methods["__dlpack_device__"] = method(name, lambda: (1, 0))
        if name == "__str__":
            methods["__array__"] = lambda *_, **__: np.ones(())
        it = Kind("It", (), methods)()
        with contextlib.suppress(Exception):
            CALL
        del it
        print(name)
    print("seen", *seen)
    server.stop()
"""

# A call with an object, and methods that it must have called; else the test tests nothing.
_CALLS = {
    "value": ("writer.append({'x': it})", "__array__ __dlpack__ __del__"),
    "key": ("writer.append({it: 1.0})", "__eq__ __hash__ __repr__"),
    "value that is set": (
        "writer.end_episode(); writer.append({'x': 1.0}, partial_step=True); "
        "writer.append({'x': it})",
        "__array__ __str__",
    ),
    "path": ("writer.configure((it,), num_keep_alive_refs=2, max_chunk_length=None)", "__repr__"),
    "index": ("writer.history['x'][it]", "type"),
    "start": ("writer.history['x'][it:]", "__index__"),
    "stop": ("writer.history['x'][:it]", "__index__"),
    "stride": ("writer.history['x'][::it]", "__index__"),
    "indices": ("writer.history['x'][[it]]", "type"),
    "key of a trajectory": (
        "writer.create_item('t', 1.0, {it: writer.history['x'][-1]})",
        "__eq__ __hash__ __str__",
    ),
    "constant": ("writer.create_item('t', 1.0, {'x': it})", "__array__ __dlpack__"),
    "priority": ("writer.create_item('t', it, {'x': writer.history['x'][-1]})", "__float__"),
    "rows": ("batched.append({'x': it}, where=[it])", "__array__ __bool__"),
    "key of rows": ("batched.append({it: np.ones(1)})", "__eq__ __hash__ __repr__"),
    "index of rows": ("batched.history['x'][it]", "type"),
    "key of items": (
        "batched.create_items('t', [1.0], {it: batched.history['x'][-1]})",
        "__eq__ __hash__",
    ),
    "step": ("sequence.append({'x': it}, is_last=it, priorities=it)", "__array__"),
    "key of a step": ("sequence.append({it: 1.0})", "__eq__ __hash__ __repr__"),
    "step of a pattern": ("patterned.append({'x': it})", "__array__ __dlpack__"),
    "step of a legacy writer": ("legacy.append({it: it})", "__eq__ __array__ __dlpack__"),
    "sequence": ("legacy.append_sequence({'x': it})", "__array__"),
    "item": ("client.insert({'x': 1.0}, {'t': it})", "__float__"),
    "key of an item": ("client.insert({it: 1.0}, {'t': 1.0})", "__eq__ __hash__ __str__"),
    "table": ("client.insert({'x': 1.0}, {it: 1.0})", "__hash__"),
    "updates": ("client.mutate_priorities('t', {it: it}, [it])", "__float__ __index__ __repr__"),
    "keys": ("client.fetch('t', it)", "__array__ __dlpack__"),
    "batch": ("client.sample_batch('t', it)", "__index__"),
    "size of a table": ("testing.table('v', max_size=it)", "__index__"),
    "tables of a server": ("reverb.Server(it)", "__iter__"),
    "value in an event loop": ("asyncio.run(insert({'x': it}))", "__array__ __dlpack__"),
    "key in an event loop": ("asyncio.run(insert({it: 1.0}))", "__hash__ __str__"),
}


@pytest.mark.parametrize(("call", "methods"), _CALLS.values(), ids=_CALLS)
def test_an_object_may_use_what_reads_it(call, methods):
    with Program(_PROGRAM.replace("CALL", call)) as program:
        # A call that hangs is that of the method after the last line.
        lines = [program.line()]
        while not lines[-1].startswith("seen"):
            lines.append(program.line())
    assert set(methods.split()) <= set(lines[-1].split())
