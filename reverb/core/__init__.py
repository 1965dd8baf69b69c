# SPDX-License-Identifier: Apache-2.0
"""The Rust crates of the engine, and the native module that is built from them.

Only this file imports the native module; all others import `native` from here.
"""

try:
    from reverb.core import _native as native
except ImportError as error:
    raise ImportError(
        "The compiled part of reverb (reverb.core._native) cannot be loaded. Install the package "
        "with `pip install reverb-replay`; in a source tree, build it with `make build`. "
        f"The cause was: {error}"
    ) from error

__all__ = ["native"]
