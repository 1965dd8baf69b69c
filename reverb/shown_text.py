# SPDX-License-Identifier: Apache-2.0
"""What errors, tracebacks and `repr` show of secrets: no token, wherever somebody has typed it."""

import functools
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["hidden", "hidden_token", "shown", "shows_no_token", "type_name", "without_tokens"]

_Class = TypeVar("_Class", bound=type)
# As in the core: shorter words are names.
_TOKEN = re.compile(r"(rvb_[\w-]{4})[\w-]{12,}", re.ASCII)


def without_tokens(text: str) -> str:
    """Returns a text with the first eight characters of each token in place of the token."""
    return _TOKEN.sub(r"\1…", text) if "rvb_" in text else text


class _Hidden(str):
    """A text whose `repr`, which tracebacks with local variables have, shows no token."""

    __slots__ = ()

    def __repr__(self) -> str:
        return without_tokens(super().__repr__())

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


class _HiddenToken(_Hidden):
    """A token, of whatever form."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


class _HiddenBytes(bytes):
    """The same for bytes, which are taken as paths, and for tokens by mistake."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "b'...'"


def type_name(value: object) -> str:
    """The name of a value's type, as its caller knows it."""
    kinds = (kind for kind in type(value).__mro__ if not kind.__name__.startswith("_Hidden"))
    return next(kinds).__name__


def hidden(value: Any) -> Any:
    """Returns an argument for a path or an address as it is, unless a token was typed there.

    Then it is the same text, whose `repr` does not show the token.
    """
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(text, bytes):
        return _HiddenBytes(text) if b"rvb_" in text else value
    return _Hidden(text) if isinstance(text, str) and without_tokens(text) != text else value


def hidden_token(value: Any) -> Any:
    """Returns an argument for a token; the `repr` of a text shows nothing of it."""
    if isinstance(value, bytes):
        return _HiddenBytes(value)
    return _HiddenToken(value) if isinstance(value, str) else value


def shown(method: Callable[[Any], str]) -> Callable[[Any], str]:
    """Makes a `__repr__` that shows no token, and works when the constructor has failed."""

    @functools.wraps(method)
    def text(self: Any) -> str:
        try:
            return without_tokens(method(self))
        except AttributeError:
            return f"<{type(self).__name__}, not made>"

    return text


def shows_no_token(kind: _Class) -> _Class:
    """Does the same for a dataclass, and hides its arguments; a decorator above its own."""
    made: Any = kind
    init = made.__init__

    @functools.wraps(init)
    def hiding_init(self: Any, *args: Any, **kwargs: Any) -> None:
        args = tuple(map(hidden, args))
        kwargs = {name: hidden(value) for name, value in kwargs.items()}
        init(self, *args, **kwargs)

    made.__init__ = hiding_init
    made.__repr__ = shown(made.__repr__)
    return kind
