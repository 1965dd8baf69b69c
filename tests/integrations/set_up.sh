#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the environment of another library from its pins: set_up.sh .venvs/NAME PYTHON
# requirements/NAME.txt is installed as pip resolves it, NAME.no-deps.txt without dependencies.
set -eu

venv=$1
python=$2
pins=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)/requirements/$(basename "$venv")

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
install --requirement "$pins.txt"
[ ! -f "$pins.no-deps.txt" ] || install --no-deps --requirement "$pins.no-deps.txt"
