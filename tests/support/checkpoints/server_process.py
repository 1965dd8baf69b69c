# SPDX-License-Identifier: Apache-2.0
"""A process that starts servers on a directory of checkpoints, as it is told to."""

import contextlib

from support.programs import Program

# Servers in a process of its own, one after another. Every line is a command, and is answered.
SERVER = """
    import sys

    import reverb
    from reverb import testing

    root, name, keep_latest = sys.argv[1:]
    checkpointer = reverb.checkpointers.DefaultCheckpointer(
        root, keep_latest=int(keep_latest), name=name or None
    )
    server = client = None
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "start":
            try:
                server = reverb.Server(
                    [testing.table(max_size=10**6)], checkpointer=checkpointer, host="127.0.0.1"
                )
                client = server.localhost_client()
                print(*[sample.data[0].item() for sample in client.scan("table")])
            except reverb.ReverbError as error:
                print(type(error).__name__, error)
        elif command == "insert":
            client.insert(int(arguments[0]), {"table": 1.0})
        elif command == "save":
            print(client.checkpoint())
        elif command == "fork":
            import os, time
            child = os.fork()
            if not child:
                os.close(1), os.close(2)
                time.sleep(100)
            print(child)
        elif command == "stop":
            server.stop()
            print("stopped")
"""


@contextlib.contextmanager
def process(root, name=None, keep_latest=1, **environment):
    """A program of that kind; `program.ask("save")` gives its answer."""
    with Program(SERVER, root, name or "", keep_latest, **environment) as program:

        def ask(*words):
            program.tell(" ".join(map(str, words)))
            return program.line()

        program.ask = ask
        yield program


def refused(program, *parts):
    """The error of a start, which names all of `parts`."""
    answer = program.ask("start")
    assert answer.startswith("FailedPreconditionError "), answer
    for part in parts:
        assert str(part) in answer
    return answer
