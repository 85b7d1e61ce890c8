#!/bin/sh
# `make system`: what grading needs of the operating system, which is bubblewrap and leave to use it, and a Chromium in
# which the tests look at the pages. Debian and Ubuntu. Says what it does before it does it; does nothing when all is there.
# The first argument is the folder of the environment.
set -eu

fine() { bwrap --unshare-user --unshare-net --unshare-pid --ro-bind / / --proc /proc true 2>/dev/null; }
restricted() { [ "$(cat /proc/sys/kernel/apparmor_restrict_unprivileged_userns 2>/dev/null)" = 1 ]; }
as_root() { echo "system: $*"; if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

browser() {
  command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable ||
    ls -d "${PLAYWRIGHT_BROWSERS_PATH:-$HOME/.cache/ms-playwright}"/chromium-* 2>/dev/null
}
snap_only() { ! apt-cache policy chromium 2>/dev/null | grep -q 'Candidate: [0-9]'; }  # Ubuntu
update() { as_root apt-get update -qq || echo "system: could not update the list of packages; goes on with the old one"; }

if ! command -v bwrap >/dev/null; then
  command -v apt-get >/dev/null ||
    { echo "system: there is no bwrap and no apt-get. Install bubblewrap 0.8 or newer with your own package manager." >&2; exit 1; }
  update
  as_root apt-get install -y -qq bubblewrap
fi

if ! browser >/dev/null && command -v apt-get >/dev/null; then
  update
  if snap_only; then
    [ -x "$1/bin/playwright" ] || "${MAKE:-make}" env
    echo "system: apt has no Chromium here (a snap is none for tests): playwright fetches one, and apt what it needs"
    "$1/bin/playwright" install --with-deps chromium
  else
    as_root apt-get install -y -qq --no-install-recommends chromium
  fi || echo "system: there is no Chromium; grading does without, tests of the pages can't run" >&2
fi

if ! fine && restricted; then
  # Ubuntu 23.10 and later: user namespaces only for programs whose AppArmor profile allows them. This one is bwrap's.
  profile=/etc/apparmor.d/bwrap
  echo "system: writes $profile, which lets bwrap make user namespaces"
  printf '%s\n' 'abi <abi/4.0>,' 'include <tunables/global>' '' \
    "profile bwrap $(command -v bwrap) flags=(unconfined) {" '  userns,' '}' | as_root tee "$profile" >/dev/null
  as_root apparmor_parser --replace "$profile"
fi

fine || [ "$(id -u)" = 0 ] ||
  { echo "system: bwrap is here and may not make user namespaces. See README.md, \"Set-up, in more words\"." >&2; exit 1; }
