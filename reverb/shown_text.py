# SPDX-License-Identifier: Apache-2.0
"""Hides tokens in errors, tracebacks and `repr`, wherever they were typed."""

import functools
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["hidden", "hidden_token", "shown", "shows_no_token", "type_name", "without_tokens"]

_Class = TypeVar("_Class", bound=type)
# The core has the same pattern; shorter words are names.
_TOKEN = re.compile(r"(rvb_[\w-]{4})[\w-]{12,}", re.ASCII)


def without_tokens(text: str) -> str:
    """Returns a text with the first eight characters of each token in place of the token."""
    return _TOKEN.sub(r"\1…", text) if "rvb_" in text else text


class _Hidden(str):
    """A text whose `repr`, which tracebacks show for local variables, has no token."""

    __slots__ = ()

    def __repr__(self) -> str:
        return without_tokens(super().__repr__())

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


class _HiddenToken(_Hidden):
    """A token of any form."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


class _HiddenBytes(bytes):
    """Bytes whose `repr` has no token: a path, or a token that was passed by mistake."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "b'...'"


def type_name(value: object) -> str:
    """The name of the type that the caller has passed, without the classes of this module."""
    kinds = (kind for kind in type(value).__mro__ if not kind.__name__.startswith("_Hidden"))
    return next(kinds).__name__


def hidden(value: object) -> Any:
    """Returns an argument for a path or an address unchanged, unless it contains a token.

    In that case it returns an equal text whose `repr` does not show the token.
    """
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(text, bytes):
        return _HiddenBytes(text) if b"rvb_" in text else value
    return _Hidden(text) if isinstance(text, str) and without_tokens(text) != text else value


def hidden_token(value: object) -> Any:
    """Returns an argument for a token; the `repr` of a text shows nothing of it."""
    if isinstance(value, bytes):
        return _HiddenBytes(value)
    return _HiddenToken(value) if isinstance(value, str) else value


def shown(method: Callable[[Any], str]) -> Callable[[Any], str]:
    """Makes a `__repr__` that shows no token, and works when the constructor has failed."""

    @functools.wraps(method)
    def text(self: object) -> str:
        try:
            return without_tokens(method(self))
        except AttributeError:
            return f"<{type(self).__name__}, not made>"

    return text


def shows_no_token(kind: _Class) -> _Class:
    """Decorates a dataclass: neither its `repr` nor the arguments of its constructor show tokens.

    Stands above `@dataclass`.
    """
    made: Any = kind
    init = made.__init__

    @functools.wraps(init)
    def hiding_init(self: object, *args: object, **kwargs: object) -> None:
        args = tuple(map(hidden, args))
        kwargs = {name: hidden(value) for name, value in kwargs.items()}
        init(self, *args, **kwargs)

    made.__init__ = hiding_init
    made.__repr__ = shown(made.__repr__)
    return kind
