#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the virtual environment of the released peer: setup.sh VENV_DIR
# Does nothing when the environment is there already and holds what requirements.txt asks for.
# PEER_BASE_PYTHON chooses the base interpreter (the peer has wheels for Python 3.9 to 3.11).
set -eu

if [ $# -ne 1 ]; then
    echo "usage: $0 VENV_DIR" >&2
    exit 2
fi
mkdir -p "$1"
venv=$(CDPATH='' cd -- "$1" && pwd)
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
requirements=$here/requirements.txt
stamp=$venv/requirements.installed
base_python=${PEER_BASE_PYTHON:-python3.11}

if [ -x "$venv/bin/python" ] && cmp -s "$requirements" "$stamp"; then
    echo "$venv/bin/python"
    exit 0
fi

if ! "$base_python" -c 'import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 11))'; then
    echo "$0: dm-reverb 0.14 needs Python 3.9 to 3.11; set PEER_BASE_PYTHON to such an interpreter" >&2
    exit 1
fi

[ -x "$venv/bin/python" ] || "$base_python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements"

# Insert and sample once: a wheel that does not fit this machine fails here and not inside a benchmark.
# The working directory must not be the source tree, whose `reverb/` would be imported instead.
cd "$venv"
TF_CPP_MIN_LOG_LEVEL=3 "$venv/bin/python" - <<'PYTHON'
import numpy as np
import reverb

server = reverb.Server([reverb.Table.queue("queue", 1)])
client = server.localhost_client()
client.insert([np.float32(1)], {"queue": 1.0})
(sample,) = client.sample("queue")
if sample[0].data[0] != 1:
    raise SystemExit("the peer returned wrong data")
PYTHON

cp "$requirements" "$stamp"
echo "$venv/bin/python"
