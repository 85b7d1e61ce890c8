"""Makes the course's Python environment, or repairs it. Every `make` verb runs this first; once all is well it takes a
tenth of a second.

    python3 setup_env.py [--venv .venv]

The environment holds what requirements.txt names, and a .pth file so that `import utils` works in it from any folder.
A stamp in it is written last: an environment whose set-up was interrupted has no valid stamp and is made anew, from
pip's own cache, so nothing is downloaded twice. Only the standard library, and no syntax newer than Python 3.6, so that
a Python that is too old for the course can still say so.
"""

import argparse
import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # not Linux, not macOS
    fcntl = None

ROOT = Path(__file__).resolve().parent
REQUIREMENTS = ROOT / "requirements.txt"
OLDEST_PYTHON = (3, 11)
UNFINISHED = "set-up has not finished\n"
NO_NETWORK = ("connection broken", "NewConnectionError", "Max retries exceeded", "ProxyError")
ELSEWHERE = ["PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_DRY_RUN", "PIP_NO_DEPS", "PIP_REQUIREMENT"]


def main():
    parser = argparse.ArgumentParser(description="Make or repair the course's Python environment.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="folder of the environment (default: .venv)")
    venv = parser.parse_args().venv
    if is_ready(venv):
        return
    with one_at_a_time() as lock:
        if is_ready(venv):  # made by the other one while this one waited
            return
        began = time.monotonic()
        if not is_usable(venv):
            create(venv)
        install(venv, lock)
        print("{} is ready ({:.0f} s).".format(venv.name, time.monotonic() - began), flush=True)


# --- what is there -------------------------------------------------------------------------------------------------


def is_ready(venv):
    """Whether nothing needs doing: the stamp is that of this environment and of these requirements."""
    stamp = stamp_of(venv)
    return (
        read(stamp) == stamp_text(venv)
        and stamp.stat().st_mtime >= REQUIREMENTS.stat().st_mtime
        and python_and_pip_run(venv)
    )


def is_usable(venv):
    """Whether pip can go on in it: not half-made, not moved here from another path, its Python still there."""
    stamp = read(stamp_of(venv))
    is_whole = stamp is None or stamp.startswith(str(venv.resolve()) + "\n")  # no stamp: made by hand, by an editor
    return is_whole and python_and_pip_run(venv)


def python_and_pip_run(venv):
    """False too after an upgrade of the system's Python, which leaves the packages in the old version's folder."""
    try:
        command = [str(python_of(venv)), "-I", "-c", "import pip"]
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def stamp_of(venv):
    return venv / ".ready"


def stamp_text(venv):
    return "{}\n{}\n{}".format(venv.resolve(), ROOT, REQUIREMENTS.read_text(encoding="utf-8"))


def python_of(venv):
    return venv / "bin" / "python"


def read(path):
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


# --- making it -----------------------------------------------------------------------------------------------------


def create(venv):
    """An empty environment with pip. Whatever half of one is there is removed."""
    check_python()
    holds_files = venv.is_dir() and any(venv.iterdir())
    if holds_files and not (venv / "pyvenv.cfg").exists() and venv.name != ".venv":
        stop("{} holds files and is no Python environment. Choose another folder: make VENV=...".format(venv))
    print("Making {} with Python {}.{}.".format(venv.name, *sys.version_info[:2]), flush=True)
    command = [sys.executable, "-m", "venv", "--clear", str(venv)]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=clean_environment())
    if made.returncode != 0 or not python_and_pip_run(venv):
        said = made.stdout.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        stop("Python could not make {}: {}".format(venv, said[-1]))


def check_python():
    version = "{}.{}".format(*sys.version_info[:2])
    oldest = "{}.{}".format(*OLDEST_PYTHON)
    if sys.version_info < OLDEST_PYTHON:
        newer = [name for name in ("python3.13", "python3.12", "python3.11") if runs(name)]
        cure = "run: make PYTHON={}".format(newer[0]) if newer else "install it, then run: make PYTHON=python" + oldest
        stop("This is Python {} ({}); the course needs {} or newer: {}".format(version, sys.executable, oldest, cure))
    if not all(map(importlib.util.find_spec, ("venv", "ensurepip"))):
        cure = "On Debian and Ubuntu: sudo apt install python{}-venv".format(version)
        stop("Python {} is here without its venv module. {}. Then run the same again.".format(version, cure))


def runs(name):
    """Whether the command exists and starts (a version manager's shim may exist and refuse)."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return shutil.which(name) is not None and subprocess.run([name, "-c", ""], **quiet).returncode == 0


def install(venv, lock):
    """pip install, then the .pth file, then the stamp."""
    log = venv / "setup.log"
    stamp_of(venv).write_text(UNFINISHED, encoding="utf-8")
    print("Installing what requirements.txt names. The first time takes some minutes.", flush=True)
    if pip_install(venv, log, lock) != 0:
        stamp_of(venv).unlink()  # pip stopped by itself and left nothing half-installed
        stop(why_pip_failed(log))
    packages = site_packages(venv)
    (packages / "course.pth").write_text(str(ROOT) + "\n", encoding="utf-8")
    stamp_of(venv).write_text(stamp_text(venv), encoding="utf-8")


def pip_install(venv, log, lock):
    """Run pip with its words in `log` and one moving line on a terminal; return its exit status."""
    command = [str(python_of(venv)), "-I", "-m", "pip", "install", "--requirement", str(REQUIREMENTS)]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "universal_newlines": True, "errors": "replace"}
    # pip holds the lock as well: if this program is killed, the next one waits until pip has gone too
    pip = subprocess.Popen(command, env=clean_environment(), pass_fds=lock, **output)
    with pip, log.open("w", encoding="utf-8") as file:
        for line in pip.stdout:
            file.write(line)
            show_progress(line.strip())
    show_progress("")
    return pip.returncode


def show_progress(line):
    """Overwrite one line of the terminal; in a log file (no terminal) only the big downloads appear."""
    if sys.stdout.isatty():
        if not line or line.startswith(("Collecting", "Downloading", "Installing")):
            print("\r\033[K" + line[: shutil.get_terminal_size().columns - 1], end="", flush=True)
    elif line.startswith("Downloading") and line.endswith("MB)"):
        print("  " + line, flush=True)


def clean_environment():
    """This process's environment without what would send Python or pip elsewhere; indexes, proxies and caches stay."""
    moved = [*ELSEWHERE, "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"]
    kept = {name: value for name, value in os.environ.items() if name not in moved}
    return dict(kept, PIP_USER="0", PYTHONUNBUFFERED="1")


def site_packages(venv):
    command = [str(python_of(venv)), "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.check_output(command, universal_newlines=True).strip())


def why_pip_failed(log):
    words = read(log) or ""
    errors = [line[len("ERROR: ") :] for line in words.splitlines() if line.startswith("ERROR: ")]
    if any(sign in words for sign in NO_NETWORK):
        what = "pip cannot reach its package index: is there a network, or a proxy to set?"
    elif "from versions: none" in words:
        what = "pip found no package: {}. Is PIP_NO_INDEX set? Is this Python newer than 3.13?".format(errors[0])
    else:
        what = "pip could not install the requirements: {}.".format(errors[-1] if errors else "it did not say why")
    return "{} Then run the same again, nothing is lost. pip's own words: {}".format(what, log)


# --- around it -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def one_at_a_time():
    """Two `make` at once: the second waits for the first. The lock lies on this very file, so none is left behind."""
    if fcntl is None:
        yield ()
        return
    with open(__file__) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("Another make is setting up; waiting for it.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield (lock.fileno(),)


def stop(why):
    sys.exit("set-up: " + why)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nset-up: interrupted. Run the same again: it goes on.", file=sys.stderr)
        sys.exit(130)
