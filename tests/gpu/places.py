"""Keeps out of the result where it was made: paths, host and user names."""

from __future__ import annotations

import getpass
import os
import re
import socket
from pathlib import Path

from tests.gpu.running import ROOT

# A path with a folder in it. What every Linux has in the same place may stay, and so may what follows "https:/".
PATH = re.compile(r"(?<![\w.:/<>-])/(?!(?:dev|proc|sys)/)(?:[\w.@+~-]+/)+(?=[\w.@+~<-])")
SHORTEST = 2  # characters of a name that is replaced: "a" would be found everywhere


def without_places(text: str) -> str:
    """The text with paths relative to the project, or cut down to the last part, and without names of this machine."""
    for place in sorted({str(ROOT), os.path.realpath(ROOT)}, key=len, reverse=True):
        text = text.replace(f"{place}/", "").replace(place, ".")
    text = PATH.sub("…/", text)
    for name, instead in names().items():
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", instead, text)
    return text


def names() -> dict[str, str]:
    """{a name of this machine: what stands for it}."""
    host, found = socket.gethostname(), {}
    for name in {host, host.partition(".")[0], os.uname().nodename}:
        found[name] = "HOST"
    try:
        found[getpass.getuser()] = "USER"
    except (KeyError, OSError):  # a user without a name
        pass
    common = {"localhost", "root", "user", "ubuntu", "runner"}  # they say nothing, and "root" is a word of ours
    kept = sorted((name for name in found if len(name) >= SHORTEST and name not in common), key=len, reverse=True)
    return {name: found[name] for name in kept}  # a name before what it begins with


def clean(folder: Path) -> None:
    """Do the same to every text file in the folder."""
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in (".txt", ".json", ".csv", ".md", ".html"):
            text = path.read_text(encoding="utf-8", errors="replace")
            cleaned = without_places(text)
            if cleaned != text:
                path.write_text(cleaned, encoding="utf-8")
