# SPDX-License-Identifier: Apache-2.0
"""Prints the directory for `PYTHONPATH` in which `transfer_queue` is this module.

PYTHONPATH=$(python -m reverb.adapters.transfer_queue --path) python train.py
"""

import argparse
import pathlib

parser = argparse.ArgumentParser(prog="python -m reverb.adapters.transfer_queue")
parser.add_argument("--path", action="store_true", required=True, help="print the directory")
parser.parse_args()
print(pathlib.Path(__file__).with_name("path"))
