"""A lesson's room: the folder with its checks and what `make build` has recorded for them.

In the repository, that is solutions/NN_topic, which holds everything else about the lesson too. In the students'
bundle, it is in `rooms` beside this file, without hidden tests and answers.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import cloudpickle

from ..text import package

IN_BUNDLE = Path(__file__).parent / "rooms"
ROOMS = IN_BUNDLE if IN_BUNDLE.is_dir() else Path(package.LESSONS)
HIDDEN = "hidden_"  # begins the name of a hidden test in a module of checks


def room_of(lesson: str, rooms: Path = ROOMS) -> Path:
    """The room of a lesson such as "01_collectives", in `rooms` or wherever its checks have been loaded from.

    Raises ValueError if there is no such lesson.
    """
    loaded = sys.modules.get(checks_file(Path(lesson)).stem)
    if loaded is not None and loaded.__file__ and Path(loaded.__file__).parent.name == lesson:
        return Path(loaded.__file__).parent
    if not checks_file(rooms / lesson).is_file():
        lessons = sorted(file.parent.name for file in rooms.glob("*/checks_*.py"))
        raise ValueError(f"there is no lesson {lesson!r}: choose one of {', '.join(lessons)}")
    return rooms / lesson


def checks_file(room: Path) -> Path:
    """solutions/01_collectives/checks_01.py"""
    return room / f"checks_{room.name[:2]}.py"


def load_checks(room: Path) -> ModuleType:
    """The module of a room's checks; read again if the module of this name is from another room.

    Ranks can't import it, so what it hands to them travels by value.
    """
    path = checks_file(room)
    loaded = sys.modules.get(path.stem)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    spec = spec_from_file_location(path.stem, path)
    assert spec, path
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    try:  # without Python's cache, which takes a file for the old one if its size and second are the same
        exec(compile(path.read_bytes(), path, "exec"), vars(module))
    except BaseException:
        del sys.modules[path.stem]
        raise
    cloudpickle.register_pickle_by_value(module)
    return module
