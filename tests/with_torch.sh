#!/bin/sh
# `make versions`: the tests that a version of torch can break, with that version, in an environment of its own.
#   sh tests/with_torch.sh UV 2.12.1
set -eu
venv=build/torch-$2
[ -x "$venv/bin/python" ] || "$1" venv --quiet "$venv"
# setuptools, too, is as this torch wants it
grep -v -e '^torch==' -e '^setuptools==' requirements.txt | "$1" pip install --quiet --python "$venv/bin/python" -r - "torch==$2"
echo "torch $2:"
exec "$venv/bin/python" -m pytest -q -m 'not thorough and not sandbox' tests/recording tests/diagnosis tests/kit \
  tests/worlds/real/test_spawn.py tests/worlds/virtual/test_virtual_values.py tests/worlds/virtual/test_virtual_wrappers.py
