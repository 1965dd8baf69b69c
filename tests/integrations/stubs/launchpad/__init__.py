# SPDX-License-Identifier: Apache-2.0
"""Stands in for `launchpad` within one process, as far as Acme uses it.

dm-launchpad has no wheel for Python 3.11 and later, and Acme imports it even where it launches
nothing. Here every node of a program is a thread of this process, and a handle is the object
itself. Only tests use this.
"""

import collections
import contextlib
import threading

START_TIMEOUT_S = 300

_stop_handlers = []
_lock = threading.Lock()


def register_stop_handler(handler):
    with _lock:
        _stop_handlers.append(handler)


def unregister_stop_handler(handler):
    with _lock:
        if handler in _stop_handlers:
            _stop_handlers.remove(handler)


def stop():
    with _lock:
        handlers = list(_stop_handlers)
    for handler in handlers:
        handler()


class Handle:
    """Names a node before it has started."""

    def __init__(self, node):
        self._node = node

    def dereference(self):
        return self._node.wait()


class Node:
    """A thread that makes an object and, unless told not to, calls its `run`."""

    def __init__(self):
        self._ready = threading.Event()
        self._object = None
        self._error = None
        self._runs = True

    def create_handle(self):
        return Handle(self)

    def disable_run(self):
        self._runs = False

    def wait(self):
        if not self._ready.wait(START_TIMEOUT_S):
            raise TimeoutError(f"the node did not start within {START_TIMEOUT_S} s")
        if self._error is not None:
            raise self._error
        return self._object

    def start(self):
        threading.Thread(target=self._main, daemon=True).start()

    def _main(self):
        try:
            self._object = self._build()
        except BaseException as error:  # The thread that waits for the object raises it again.
            self._error = error
            raise
        finally:
            self._ready.set()
        run = getattr(self._object, "run", None)
        if self._runs and callable(run):
            with contextlib.suppress(SystemExit):
                run()

    def _build(self):
        raise NotImplementedError


class CourierNode(Node):
    def __init__(self, constructor, *arguments, **keywords):
        super().__init__()
        self._constructor = constructor
        self._arguments = arguments
        self._keywords = keywords

    def _build(self):
        return self._constructor(*dereference(self._arguments), **dereference(self._keywords))


PyClassNode = CourierNode
CourierHandle = Handle


class CacherNode(Node):
    """Caches nothing: in one process, asking the object itself costs as little."""

    def __init__(self, target, *_, **__):
        super().__init__()
        self._target = target
        self.disable_run()

    def _build(self):
        return dereference(self._target)


class ReverbNode(Node):
    def __init__(
        self, priority_tables_fn, checkpoint_ctor=None, checkpoint_time_delta_minutes=None
    ):
        super().__init__()
        del checkpoint_time_delta_minutes
        self._make_tables = priority_tables_fn
        self._make_checkpointer = checkpoint_ctor
        self.disable_run()

    def _build(self):
        import reverb

        checkpointer = self._make_checkpointer() if self._make_checkpointer else None
        self._server = reverb.Server(
            tables=self._make_tables(), port=None, checkpointer=checkpointer
        )
        return reverb.Client(f"localhost:{self._server.port}")


class MultiThreadingColocation:
    def __init__(self, nodes):
        self.nodes = list(nodes)


class MultiProcessingColocation(MultiThreadingColocation):
    pass


class Program:
    def __init__(self, name):
        self.name = name
        self.groups = collections.defaultdict(list)
        self._label = None

    @contextlib.contextmanager
    def group(self, label):
        outer, self._label = self._label, label
        try:
            yield
        finally:
            self._label = outer

    def add_node(self, node, label=None):
        self.groups[label or self._label].append(node)
        return None if isinstance(node, MultiThreadingColocation) else node.create_handle()

    def get_all_nodes(self):
        return [
            member
            for nodes in self.groups.values()
            for node in nodes
            for member in (node.nodes if isinstance(node, MultiThreadingColocation) else [node])
        ]


def launch(program, launch_type=None, **_):
    del launch_type
    for node in program.get_all_nodes():
        node.start()


def dereference(value):
    """Returns a value with the objects themselves in place of handles."""
    if isinstance(value, Handle):
        return value.dereference()
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(dereference(member) for member in value)
    if isinstance(value, dict):
        return {key: dereference(member) for key, member in value.items()}
    return value


def batched_handler(**_):
    return lambda function: function


class DockerConfig:
    def __init__(self, *_, **__):
        pass


class Server:
    """A name in annotations."""
