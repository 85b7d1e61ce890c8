"""Set up the course's Python environment. Each verb of the Makefile runs this first and names the packages it needs:

    python3 setup_env.py [course | instructor | developer | bench] [--venv .venv] [--uv uv] [--system-site]

requirements.txt lists these groups in this order, and each includes the ones before it. If they are installed, nothing
happens. uv installs them: the one on the PATH, or one that pip puts into the environment. With --uv "", pip does.

An environment made by hand is filled, and one that can't be written to is used as it is. One whose set-up was
interrupted, that was moved, or whose Python is gone, is made anew. This file uses only the standard library and the
syntax of Python 3.6, so that a Python too old for the course can still say so.
"""

import argparse
import ast
import functools
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
GROUPS = ["course", "instructor", "developer", "bench"]
PYTHON = ((3, 11), (3, 15))  # the oldest that works, and the first without torch
TORCH = ((2, 12), (2, 14))  # the oldest that works, and the first that has not been tried
UV = "uv==0.13.9"
UV_NAMES = {  # settings of pip, such as a mirror, that hold for uv as well
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}


def main():
    parser = argparse.ArgumentParser(description="Set up the course's Python environment.")
    parser.add_argument("group", nargs="?", default="course", choices=GROUPS, help="the packages (default: course)")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="the environment's folder (default: .venv)")
    parser.add_argument("--uv", default="uv", help='uv\'s name or path; "" to install with pip (default: uv)')
    parser.add_argument("--system-site", action="store_true", help="use the torch that this Python has")
    given = parser.parse_args()
    wanted = packages_of(given.group)
    if is_ready(given, wanted):
        return
    began = time.time()
    if not is_usable(given):
        create(given)
    print(f"Installing packages into {given.venv}: {given.group}.", flush=True)
    install(given, wanted)
    print(f"{given.venv} is ready ({time.time() - began:.0f} s).", flush=True)


def packages_of(group):
    """The lines of requirements.txt for this group and the ones before it."""
    parts = (ROOT / "requirements.txt").read_text(encoding="utf-8").split("\n# For ")[1:]
    lines = "\n".join(parts[: GROUPS.index(group) + 1]).splitlines()
    return [line for line in lines if "==" in line]


# --- checking ------------------------------------------------------------------------------------------------------


def is_ready(given, wanted):
    """Whether there is nothing to do. Stops if there is, in an environment that can't be written to."""
    missing = set(wanted) - set(noted(given.venv))
    if given.venv.is_dir() and not os.access(str(given.venv), os.W_OK):  # made for a whole class, say
        if missing:
            names = ", ".join(sorted(missing)[:3])
            ask = "Ask whoever made it to run `make env` there with this version of the course, or make your own"
            stop(f"{given.venv} can't be written to and lacks {names}. {ask}: make VENV=.venv env")
        return True
    return not missing and is_usable(given) and str(ROOT) in noted(given.venv)


def is_usable(given):
    """Whether packages can be installed into it as it is."""
    venv = given.venv
    as_made = not (venv / "course.txt").exists() or identity(venv) in noted(venv)
    return (venv / "bin" / "python").exists() and as_made and (sees_system(venv) or not given.system_site)


def identity(venv):
    """Differs once the environment is moved, or the system's Python becomes one that looks for packages elsewhere."""
    return f"{venv.resolve()} with {os.path.realpath(str(venv / 'bin' / 'python'))}"


def noted(venv):
    """The note of a finished set-up: the identity, the course's folder, the packages. Empty if it has not finished."""
    note = venv / "course.txt"
    return note.read_text(encoding="utf-8").splitlines() if note.exists() else []


def sees_system(venv):
    settings = venv / "pyvenv.cfg"
    return settings.exists() and "include-system-site-packages = true" in settings.read_text(encoding="utf-8")


# --- making --------------------------------------------------------------------------------------------------------


def create(given):
    """Make an empty environment with pip, in place of an incomplete one."""
    venv, version = given.venv, "{}.{}".format(*sys.version_info[:2])
    if not PYTHON[0] <= sys.version_info[:2] < PYTHON[1]:
        stop(f"This is Python {version} ({sys.executable}). The course needs 3.11 to 3.14: make PYTHON=python3.13")
    if venv.is_dir() and any(venv.iterdir()) and not {"pyvenv.cfg", "course.txt"} & set(os.listdir(str(venv))):
        stop(f"{venv} contains files but isn't a Python environment. Choose another folder: make VENV=...")
    shutil.rmtree(str(venv), ignore_errors=True)
    venv.mkdir(parents=True)
    (venv / "course.txt").touch()
    uv = given.uv and shutil.which(given.uv)
    command = [uv, "venv", *no_index(), "--quiet", "--seed", "--allow-existing", "--python", sys.executable]
    command = command if uv else [sys.executable, "-m", "venv"]
    run(command + ["--system-site-packages"] * given.system_site + [str(venv)], "Python could not create " + str(venv))
    if given.system_site:
        folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isdir(folder)]
        add_to_path(venv, "system.pth", folders)  # a cluster's modules
        check_torch(venv)


def check_torch(venv):
    code = "import importlib.metadata as m; print(*[one.version for one in m.distributions(name='torch')][:1])"
    version = said([str(venv / "bin" / "python"), "-c", code])
    if not TORCH[0] <= tuple(map(int, re.findall(r"\d+", version)[:2])) < TORCH[1]:
        limits = "torch {}.{} up to, but not including, {}.{}".format(*TORCH[0], *TORCH[1])
        stop(
            f"SYSTEM_SITE=1 uses the torch of {sys.executable}, which has {version or 'none'}. The course works with "
            f"{limits}. Without SYSTEM_SITE=1, it installs its own."
        )


def install(given, wanted):
    """Install the packages, put the course on the path, and note that all is there."""
    venv, python, note = given.venv, str(given.venv / "bin" / "python"), given.venv / "course.txt"
    finished, requirements = [identity(venv), str(ROOT), *wanted], venv / "requirements.txt"
    needed = [line for line in wanted if not (sees_system(venv) and line.startswith("torch=="))]
    requirements.write_text("\n".join(needed), encoding="utf-8")
    if note.exists():
        note.write_text("", encoding="utf-8")
    uv = given.uv and (shutil.which(given.uv) or shutil.which("uv", path=str(venv / "bin")))
    if given.uv and not uv:
        run([python, "-m", "pip", "install", "--quiet", UV], "pip could not install uv")
        uv = str(venv / "bin" / "uv")
    command = [uv, "pip", "install", *no_index(), "--python", python] if uv else [python, "-m", "pip", "install"]
    run([*command, "-r", str(requirements)], "The packages could not be installed")
    add_to_path(venv, "course.pth", [str(ROOT)])
    note.write_text("\n".join(finished), encoding="utf-8")


def add_to_path(venv, name, folders):
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(said([str(venv / "bin" / "python"), "-c", code]))
    (packages / name).write_text("".join(folder + "\n" for folder in folders), encoding="utf-8")


def run(command, failure):
    """Run a step that says itself what it does. Stops if it fails."""
    env = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip does: the best version of all indexes
    for name in set(UV_NAMES) & set(settings_of_pip()):
        env[UV_NAMES[name]] = ("," if name == "find-links" else " ").join(settings_of_pip()[name].split())
    ours = {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if subprocess.call(command, env={**env, **os.environ, **ours}) != 0:
        stop(failure + ": see above. Run the same command again to continue; what was downloaded is kept.")


def no_index():
    """uv's option for a setting of pip's that it has no variable for."""
    return ["--no-index"] * (settings_of_pip().get("no-index", "").lower() in ("1", "true", "yes", "on"))


@functools.lru_cache(maxsize=None)
def settings_of_pip():
    """{name: value}, from its files and the environment."""
    listed = [line for line in said([sys.executable, "-m", "pip", "config", "list"]).splitlines() if "='" in line]
    settings = [line.partition("=") for line in sorted(listed, key=lambda line: line.startswith(":env:"))]  # these win
    return {name.rpartition(".")[2]: ast.literal_eval(value) for name, _, value in settings}


def said(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True)
    return done.stdout.strip()


def stop(why):
    sys.exit("set-up: " + why)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nset-up: interrupted. Run the same command again to continue.")
