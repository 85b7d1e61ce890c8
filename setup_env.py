"""Create or repair the course's Python environment. Every `make` verb runs this first; if there is nothing to do, it
takes a tenth of a second.

    python3 setup_env.py [--venv .venv]

The environment contains the packages in requirements.txt, and a .pth file so that `import utils` works from any folder.
The last step writes a stamp. If set-up was interrupted, the stamp isn't valid and the environment is created again,
from pip's own cache, so nothing is downloaded twice. This file uses only the standard library, and no syntax newer than
Python 3.6, so that a Python too old for the course can still say so.
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
except ImportError:  # neither Linux nor macOS
    fcntl = None

ROOT = Path(__file__).resolve().parent
REQUIREMENTS = ROOT / "requirements.txt"
OLDEST_PYTHON = (3, 11)
UNFINISHED = "set-up has not finished\n"
NO_NETWORK = ("connection broken", "NewConnectionError", "Max retries exceeded", "ProxyError")
PIP_REDIRECTS = ["PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_DRY_RUN", "PIP_NO_DEPS", "PIP_REQUIREMENT"]


def main():
    parser = argparse.ArgumentParser(description="Create or repair the course's Python environment.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="the environment's folder (default: .venv)")
    venv = parser.parse_args().venv
    if is_ready(venv):
        return
    with one_at_a_time() as lock:
        if is_ready(venv):  # another process finished it while this one waited
            return
        began = time.monotonic()
        if not is_usable(venv):
            create(venv)
        install(venv, lock)
        print("{} is ready ({:.0f} s).".format(venv.name, time.monotonic() - began), flush=True)


# --- checking ------------------------------------------------------------------------------------------------------


def is_ready(venv):
    """Whether there is nothing to do: the stamp matches this environment and these requirements."""
    stamp = stamp_of(venv)
    return (
        read(stamp) == stamp_text(venv)
        and stamp.stat().st_mtime >= REQUIREMENTS.stat().st_mtime
        and python_and_pip_run(venv)
    )


def is_usable(venv):
    """Whether pip can use it as it is: complete, not moved here from another path, with a working Python."""
    stamp = read(stamp_of(venv))
    is_whole = stamp is None or stamp.startswith(str(venv.resolve()) + "\n")  # no stamp: created by hand or an editor
    return is_whole and python_and_pip_run(venv)


def python_and_pip_run(venv):
    """Also false after the system's Python was upgraded, as the packages are then in the old version's folder."""
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


# --- creating ------------------------------------------------------------------------------------------------------


def create(venv):
    """Create an empty environment with pip, replacing any incomplete one."""
    check_python()
    holds_files = venv.is_dir() and any(venv.iterdir())
    if holds_files and not (venv / "pyvenv.cfg").exists() and venv.name != ".venv":
        stop("{} contains files but isn't a Python environment. Choose another folder: make VENV=...".format(venv))
    print("Creating {} with Python {}.{}.".format(venv.name, *sys.version_info[:2]), flush=True)
    command = [sys.executable, "-m", "venv", "--clear", str(venv)]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=clean_environment())
    if made.returncode != 0 or not python_and_pip_run(venv):
        output = made.stdout.decode(errors="replace").strip().splitlines() or ["it printed no reason"]
        stop("Python could not create {}: {}".format(venv, output[-1]))


def check_python():
    version = "{}.{}".format(*sys.version_info[:2])
    oldest = "{}.{}".format(*OLDEST_PYTHON)
    if sys.version_info < OLDEST_PYTHON:
        newer = [name for name in ("python3.13", "python3.12", "python3.11") if runs(name)]
        fix = "run: make PYTHON={}".format(newer[0]) if newer else "install it, then run: make PYTHON=python" + oldest
        stop("This is Python {} ({}). The course needs {} or newer: {}".format(version, sys.executable, oldest, fix))
    if not all(map(importlib.util.find_spec, ("venv", "ensurepip"))):
        fix = "On Debian and Ubuntu: sudo apt install python{}-venv".format(version)
        stop("Python {} lacks its venv module. {}. Then run the same command again.".format(version, fix))


def runs(name):
    """Whether the command exists and starts (a version manager's shim may exist but fail)."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return shutil.which(name) is not None and subprocess.run([name, "-c", ""], **quiet).returncode == 0


def install(venv, lock):
    """pip install, then the .pth file, then the stamp."""
    log = venv / "setup.log"
    stamp_of(venv).write_text(UNFINISHED, encoding="utf-8")
    print("Installing the packages in requirements.txt. The first time takes a few minutes.", flush=True)
    if pip_install(venv, log, lock) != 0:
        stamp_of(venv).unlink()  # pip stopped on its own, so nothing is half installed
        stop(why_pip_failed(log))
    packages = site_packages(venv)
    (packages / "course.pth").write_text(str(ROOT) + "\n", encoding="utf-8")
    stamp_of(venv).write_text(stamp_text(venv), encoding="utf-8")


def pip_install(venv, log, lock):
    """Run pip, logging to `log` and showing one changing line on a terminal. Returns its exit status."""
    command = [str(python_of(venv)), "-I", "-m", "pip", "install", "--requirement", str(REQUIREMENTS)]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "universal_newlines": True, "errors": "replace"}
    # pip holds the lock too: if this program is killed, the next one waits until pip has ended as well
    pip = subprocess.Popen(command, env=clean_environment(), pass_fds=lock, **output)
    with pip, log.open("w", encoding="utf-8") as file:
        for line in pip.stdout:
            file.write(line)
            show_progress(line.strip())
    show_progress("")
    return pip.returncode


def show_progress(line):
    """Overwrite one line of the terminal. Without a terminal (in a log file), show only the big downloads."""
    if sys.stdout.isatty():
        if not line or line.startswith(("Collecting", "Downloading", "Installing")):
            print("\r\033[K" + line[: shutil.get_terminal_size().columns - 1], end="", flush=True)
    elif line.startswith("Downloading") and line.endswith("MB)"):
        print("  " + line, flush=True)


def clean_environment():
    """The environment variables, minus those that redirect Python or pip; indexes, proxies and caches stay."""
    moved = [*PIP_REDIRECTS, "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"]
    kept = {name: value for name, value in os.environ.items() if name not in moved}
    return dict(kept, PIP_USER="0", PYTHONUNBUFFERED="1")


def site_packages(venv):
    command = [str(python_of(venv)), "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.check_output(command, universal_newlines=True).strip())


def why_pip_failed(log):
    output = read(log) or ""
    errors = [line[len("ERROR: ") :] for line in output.splitlines() if line.startswith("ERROR: ")]
    if any(sign in output for sign in NO_NETWORK):
        what = "pip can't reach its package index. Is the network up? Do you need to set a proxy?"
    elif "from versions: none" in output:
        what = "pip found no package: {}. Is PIP_NO_INDEX set? Is this Python newer than 3.13?".format(errors[0])
    else:
        what = "pip could not install the requirements: {}.".format(errors[-1] if errors else "it gave no reason")
    return "{} Then run the same command again: nothing is lost. pip's log is in {}".format(what, log)


# --- lock and exit -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def one_at_a_time():
    """Make a second `make` wait for the first. The lock is on this very file, so no lock file is left behind."""
    if fcntl is None:
        yield ()
        return
    with open(__file__) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("Another make is setting up: waiting for it to finish.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield (lock.fileno(),)


def stop(why):
    sys.exit("set-up: " + why)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nset-up: interrupted. Run the same command again to continue.", file=sys.stderr)
        sys.exit(130)
