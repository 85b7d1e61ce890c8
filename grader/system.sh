#!/bin/sh
# `make system`: install what grading needs from the operating system, on Debian and Ubuntu: bubblewrap, with permission
# to use it, and a Chromium for the tests of the pages. Prints each step before doing it, and skips what is done already.
# The first argument is the environment's folder.
set -eu

fine() { bwrap --unshare-user --unshare-net --unshare-pid --ro-bind / / --proc /proc true 2>/dev/null; }
restricted() { [ "$(cat /proc/sys/kernel/apparmor_restrict_unprivileged_userns 2>/dev/null)" = 1 ]; }
as_root() { echo "system: $*"; if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

browser() {
  command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable ||
    ls -d "${PLAYWRIGHT_BROWSERS_PATH:-$HOME/.cache/ms-playwright}"/chromium-* 2>/dev/null
}
snap_only() { ! apt-cache policy chromium 2>/dev/null | grep -q 'Candidate: [0-9]'; }  # Ubuntu
update() { as_root apt-get update -qq || echo "system: could not update the package list; continuing with the old one"; }

if ! command -v bwrap >/dev/null; then
  command -v apt-get >/dev/null ||
    { echo "system: neither bwrap nor apt-get was found. Install bubblewrap 0.8 or newer with your package manager." >&2; exit 1; }
  update
  as_root apt-get install -y -qq bubblewrap
fi

if ! browser >/dev/null && command -v apt-get >/dev/null; then
  update
  if snap_only; then
    [ -x "$1/bin/playwright" ] || "${MAKE:-make}" GROUP=developer env
    echo "system: apt has only a snap of Chromium, which the tests can't use. Installing one with playwright instead"
    "$1/bin/playwright" install --with-deps chromium
  else
    as_root apt-get install -y -qq --no-install-recommends chromium
  fi || echo "system: could not install Chromium. Grading works without it, but the tests of the pages can't run" >&2
fi

if ! fine && restricted; then
  # Since Ubuntu 23.10, a program may create user namespaces only if its AppArmor profile allows it. This is bwrap's.
  profile=/etc/apparmor.d/bwrap
  echo "system: writing $profile, which lets bwrap create user namespaces"
  printf '%s\n' 'abi <abi/4.0>,' 'include <tunables/global>' '' \
    "profile bwrap $(command -v bwrap) flags=(unconfined) {" '  userns,' '}' | as_root tee "$profile" >/dev/null
  as_root apparmor_parser --replace "$profile"
fi

fine || [ "$(id -u)" = 0 ] ||
  { echo "system: bwrap is installed but may not create user namespaces. See docs/grading.md, \"The sandbox\"." >&2; exit 1; }
