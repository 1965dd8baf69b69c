# SPDX-License-Identifier: Apache-2.0
"""The library that TensorFlow loads calls the function whose address the environment names."""

import pathlib
import subprocess
import sys

import pytest

import reverb

SHIM = pathlib.Path(reverb.__file__).parent / "tf_ops" / "_reverb_ops.so"

# Loads the library as `tf.load_op_library` does; `{answer}` is what the register function does.
PROGRAM = """
import ctypes
import os
import sys

@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
def register(error, capacity):
    print("called with room for", capacity, flush=True)
    {answer}

address = ctypes.cast(register, ctypes.c_void_p).value
value = {value}
if value is not None:
    # CPython tells the C library too, which is where constructors look.
    os.environ["REVERB_REPLAY_REGISTER"] = value
ctypes.CDLL(sys.argv[1])
print("alive")
"""

ADVICE = (
    "reverb: no TensorFlow ops were registered: "
    "import reverb first; it tells this library where its TensorFlow ops are\n"
)


def load(value="hex(address)", answer="return 0"):
    """The output of a process that loads the library."""
    assert SHIM.exists(), f"{SHIM} is missing; `make build` builds it"
    program = PROGRAM.format(value=value, answer=answer)
    loaded = subprocess.run(
        [sys.executable, "-c", program, str(SHIM)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return loaded.stdout, loaded.stderr


@pytest.mark.parametrize("value", ["hex(address)", "format(address, 'x')", "format(address, 'X')"])
def test_loading_calls_the_register_function_once(value):
    assert load(value) == ("called with room for 512\nalive\n", "")


def test_ops_that_were_registered_before_are_no_fault():
    assert load(answer="return 1") == ("called with room for 512\nalive\n", "")


def test_a_failure_to_register_is_told_in_one_line():
    answer = "ctypes.memmove(error, b'TensorFlow 1.15 is too old\\0', 27); return -1"
    assert load(answer=answer) == (
        "called with room for 512\nalive\n",
        "reverb: no TensorFlow ops were registered: TensorFlow 1.15 is too old\n",
    )


def test_a_text_that_fills_all_its_room_is_told_whole():
    answer = "ctypes.memset(error, ord('x'), capacity); return -2"
    assert load(answer=answer)[1] == (f"reverb: no TensorFlow ops were registered: {'x' * 512}\n")


@pytest.mark.parametrize(
    "value", ["None", "''", "'0'", "'0x'", "'nonsense'", "'-1'", "'12 34'", "'1' + '0' * 16"]
)
def test_without_an_address_it_says_what_to_do(value):
    assert load(value) == ("alive\n", ADVICE)
