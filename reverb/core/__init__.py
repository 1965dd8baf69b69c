# SPDX-License-Identifier: Apache-2.0
"""The Rust crates of the engine, and the native module that is built from them.

Only this file imports the native module; all others import `native` from here.
"""

try:
    from reverb.core import _native as native
except ImportError as error:
    raise ImportError(
        "The compiled part of reverb (reverb.core._native) cannot be loaded. Install the package "
        "anew: `make build` or `pip install --force-reinstall .` in a clone, "
        f"`pip install --force-reinstall reverb-replay` for a release. The cause was: {error}"
    ) from error

__all__ = ["native"]
