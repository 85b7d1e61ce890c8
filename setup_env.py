"""Create or repair the course's Python environment. Every `make` verb runs this first; if there is nothing to do, it
takes a tenth of a second.

    python3 setup_env.py [--venv .venv] [--uv uv] [--system-site]

The environment contains the packages in requirements.txt, and a .pth file so that `import utils` works from any folder.
uv installs them where there is one, otherwise pip; the versions are the same. With --system-site, torch is the one that
this Python already has. An environment that belongs to somebody else and can't be written to is used as it is.

The last step writes a stamp. If set-up was interrupted, the stamp isn't valid and the environment is created again,
from pip's own cache, so nothing is downloaded twice. This file uses only the standard library, and no syntax newer than
Python 3.6, so that a Python too old for the course can still say so.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import re
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
TORCH = ((2, 12), (2, 14))  # the first version that works, and the first that has not been tried
UNFINISHED = "set-up has not finished\n"
NO_NETWORK = (
    "connection broken", "NewConnectionError", "Max retries exceeded", "ProxyError",  # pip
    "Failed to fetch", "Could not connect", "client error",  # uv
)  # fmt: skip
PIP_REDIRECTS = ["PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_DRY_RUN", "PIP_NO_DEPS", "PIP_REQUIREMENT"]
UV_REDIRECTS = ["UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_NO_DEPS", "UV_PROJECT_ENVIRONMENT"]

# Prints {name: [version, names of the packages it requires]} for the packages outside the environment.
LIST_PACKAGES = """
import importlib.metadata, json, os, re, sys
name = lambda text: re.split("[^A-Za-z0-9._-]", text)[0].lower().replace("_", "-").replace(".", "-")
inside = os.path.join(os.path.realpath(sys.prefix), "")
outside = [one for one in importlib.metadata.distributions()
           if not os.path.realpath(str(one.locate_file(""))).startswith(inside) and one.metadata["Name"]]
print(json.dumps({name(one.metadata["Name"]): [one.version, [name(text) for text in one.requires or []]]
                  for one in reversed(outside)}))
"""


def main():
    parser = argparse.ArgumentParser(description="Create or repair the course's Python environment.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="the environment's folder (default: .venv)")
    parser.add_argument(
        "--uv", default=shutil.which("uv"), help="uv's path, or '' for pip (default: uv if it is there)"
    )
    parser.add_argument("--system-site", action="store_true", help="use the torch that this Python has")
    given = parser.parse_args()
    given.system_site = given.system_site or any(given.venv.glob("lib/*/site-packages/system.pth"))  # as it was made
    if is_ready(given):
        return
    with one_at_a_time() as lock:
        if is_ready(given):  # another process finished it while this one waited
            return
        began = time.monotonic()
        if not is_usable(given):
            create(given)
        install(given, lock)
        print("{} is ready ({:.0f} s).".format(given.venv.name, time.monotonic() - began), flush=True)


# --- checking ------------------------------------------------------------------------------------------------------


def is_ready(given):
    """Whether there is nothing to do: the stamp matches this environment and these requirements."""
    venv = given.venv
    stamp = stamp_of(venv)
    if venv.is_dir() and not os.access(str(venv), os.W_OK):  # made for a whole class, say: it can only be used as it is
        check_shared(venv)
        return True
    return (
        read(stamp) == stamp_text(venv)
        and stamp.stat().st_mtime >= REQUIREMENTS.stat().st_mtime
        and python_and_pip_run(venv)
        and sees_system(given)
    )


def is_usable(given):
    """Whether pip can use it as it is: complete, not moved here from another path, with a working Python."""
    stamp = read(stamp_of(given.venv))
    is_whole = stamp is None or stamp.startswith(str(given.venv.resolve()) + "\n")  # no stamp: created by hand
    return is_whole and python_and_pip_run(given.venv) and sees_system(given)


def check_shared(venv):
    """Stop if an environment that can't be changed lacks one of the requirements."""
    missing = pins(REQUIREMENTS) - pins(stamp_of(venv))
    if missing:
        stop(
            "{} can't be written to, and it lacks {}. Ask whoever made it to run `make env` with this version of the "
            "course, or make your own: make VENV=.venv env".format(venv, ", ".join(sorted(missing)[:3]))
        )


def pins(file):
    return {line for line in (read(file) or "").splitlines() if "==" in line}


def sees_system(given):
    """Whether it is asked for and there: an environment that also sees the packages of the Python it was made with."""
    return not given.system_site or "include-system-site-packages = true" in (read(given.venv / "pyvenv.cfg") or "")


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


def create(given):
    """Create an empty environment with pip, replacing any incomplete one."""
    venv = given.venv
    check_python(given)
    holds_files = venv.is_dir() and any(venv.iterdir())
    if holds_files and not (venv / "pyvenv.cfg").exists() and venv.name != ".venv":
        stop("{} contains files but isn't a Python environment. Choose another folder: make VENV=...".format(venv))
    print("Creating {} with Python {}.{}.".format(venv.name, *sys.version_info[:2]), flush=True)
    if can_make_environments():
        command = [sys.executable, "-m", "venv", "--clear"]
    else:
        command = [given.uv, "venv", "--seed", "--clear", "--python", sys.executable]
    command += ["--system-site-packages"] * given.system_site + [str(venv)]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=clean_environment())
    if made.returncode != 0 or not python_and_pip_run(venv):
        output = made.stdout.decode(errors="replace").strip().splitlines() or ["it printed no reason"]
        stop("Python could not create {}: {}".format(venv, output[-1]))


def check_python(given):
    version = "{}.{}".format(*sys.version_info[:2])
    oldest = "{}.{}".format(*OLDEST_PYTHON)
    if sys.version_info < OLDEST_PYTHON:
        newer = [name for name in ("python3.13", "python3.12", "python3.11") if runs(name)]
        fix = "run: make PYTHON={}".format(newer[0]) if newer else "install it, then run: make PYTHON=python" + oldest
        if given.uv and not newer:
            fix = 'run: make PYTHON="$(uv python find {})"'.format(oldest)
        stop("This is Python {} ({}). The course needs {} or newer: {}".format(version, sys.executable, oldest, fix))
    if not can_make_environments() and not given.uv:
        fix = "On Debian and Ubuntu: sudo apt install python{}-venv".format(version)
        stop("Python {} lacks its venv module. {}. Then run the same command again.".format(version, fix))


def can_make_environments():
    return all(map(importlib.util.find_spec, ("venv", "ensurepip")))


def runs(name):
    """Whether the command exists and starts (a version manager's shim may exist but fail)."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return shutil.which(name) is not None and subprocess.run([name, "-c", ""], **quiet).returncode == 0


def install(given, lock):
    """Install the packages, then the .pth files, then the stamp."""
    venv = given.venv
    log = venv / "setup.log"
    stamp_of(venv).write_text(UNFINISHED, encoding="utf-8")
    packages = site_packages(venv)
    requirements = REQUIREMENTS
    if given.system_site:
        folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isdir(folder)]
        (packages / "system.pth").write_text("".join(folder + "\n" for folder in folders), encoding="utf-8")
        requirements = venv / "requirements.txt"
        requirements.write_text(requirements_besides(venv), encoding="utf-8")
    print("Installing the packages in requirements.txt. The first time takes a few minutes.", flush=True)
    if run_installer(given, requirements, log, lock) != 0:
        stamp_of(venv).unlink()  # it stopped on its own, so nothing is half installed
        stop(why_installing_failed("uv" if given.uv else "pip", log))
    if not given.uv:
        compile_packages(given, packages)
    (packages / "course.pth").write_text(str(ROOT) + "\n", encoding="utf-8")
    stamp_of(venv).write_text(stamp_text(venv), encoding="utf-8")


def requirements_besides(venv):
    """The requirements without torch and what torch requires, which the system has. Stops if its torch won't do."""
    there = json.loads(subprocess.check_output([str(python_of(venv)), "-I", "-c", LIST_PACKAGES]).decode())
    version = there.get("torch", [""])[0]
    if not TORCH[0] <= tuple(map(int, re.findall(r"\d+", version)[:2])) < TORCH[1]:
        shutil.rmtree(str(venv))
        stop(
            "SYSTEM_SITE=1 uses the torch of {}, which has {}. The course works with torch {}.{} up to, but not "
            "including, {}.{}. Without SYSTEM_SITE=1, it installs its own.".format(
                sys.executable, "torch " + version if version else "none", *(TORCH[0] + TORCH[1])
            )
        )
    needed, found = ["torch"], set()
    while needed:
        name = needed.pop()
        if name in there and name not in found:
            found.add(name)
            needed += there[name][1]
    print("Using the torch {} that is installed already.".format(version), flush=True)
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines(True)
    return "".join(line for line in lines if line.partition("==")[0].lower() not in found)


def run_installer(given, requirements, log, lock):
    """Run uv or pip, logging to `log` and showing one changing line on a terminal. Returns its exit status."""
    if given.uv:
        command = [given.uv, "pip", "install", "--python", str(python_of(given.venv)), "--compile-bytecode"]
    else:
        command = [str(python_of(given.venv)), "-I", "-m", "pip", "install", "--progress-bar", "off"]
        command += ["--no-compile", "--disable-pip-version-check", "--no-input"]
    command += ["--requirement", str(requirements)]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "universal_newlines": True, "errors": "replace"}
    # it holds the lock too: if this program is killed, the next one waits until the installer has ended as well
    installer = subprocess.Popen(command, env=clean_environment(), pass_fds=lock, **output)
    with installer, log.open("w", encoding="utf-8") as file:
        for line in installer.stdout:
            file.write(line)
            show_progress(line.strip())
    show_progress("")
    return installer.returncode


def compile_packages(given, packages):
    """Compile what pip has installed on all cores: pip would do it on one, in a third of the time that it takes."""
    show_progress("Installing: compiling")
    command = [str(python_of(given.venv)), "-I", "-m", "compileall", "-q", "-q", "-j", "0", str(packages)]
    subprocess.call(command, env=clean_environment())  # its status says that some file is for another Python
    show_progress("")


def show_progress(line):
    """Overwrite one line of the terminal. Without a terminal (in a log file), show only the big downloads."""
    if sys.stdout.isatty():
        if not line or line.startswith(("Collecting", "Downloading", "Installing")):
            print("\r\033[K" + line[: shutil.get_terminal_size().columns - 1], end="", flush=True)
    elif line.startswith("Downloading") and line.endswith("MB)"):
        print("  " + line, flush=True)


def clean_environment():
    """The environment variables, minus those that redirect Python or pip; indexes, proxies and caches stay."""
    moved = [*PIP_REDIRECTS, *UV_REDIRECTS, "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"]
    kept = {name: value for name, value in os.environ.items() if name not in moved}
    return dict(kept, PIP_USER="0", PYTHONUNBUFFERED="1")


def site_packages(venv):
    command = [str(python_of(venv)), "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.check_output(command, universal_newlines=True).strip())


def why_installing_failed(installer, log):
    output = read(log) or ""
    errors = [line[len("ERROR: ") :] for line in output.splitlines() if line.lower().startswith("error: ")]
    if any(sign in output for sign in NO_NETWORK):
        what = "{} can't reach its package index. Is the network up? Do you need to set a proxy?".format(installer)
    elif "from versions: none" in output or "No solution found" in output:
        of_uv = " ".join(output.partition("Because ")[2].partition("\n\n")[0].split())
        missing = of_uv.partition(", we can conclude")[0] or errors[0]
        what = "{} found no package: {}. Is PIP_NO_INDEX set? Is this Python newer than 3.14?".format(
            installer, missing
        )
    else:
        why = errors[-1] if errors else "it gave no reason"
        what = "{} could not install the requirements: {}.".format(installer, why)
    again = "Then run the same command again: nothing is lost."
    return "{} {} {}'s log is in {}".format(what, again, installer, log)


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
