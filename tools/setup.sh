# shellcheck shell=bash disable=SC2034
# Sourced by run, test and tools/*: where things live, what must be installed, how a build is made.
# Every step may be repeated, may be interrupted, and does nothing when its result is there already.

set -euo pipefail

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
REPRISE_CACHE=${REPRISE_CACHE:-$HOME/.cache/reprise}
REPRISE_MODELS=${REPRISE_MODELS:-$REPRISE_CACHE/models}
REPRISE_JOBS=${REPRISE_JOBS:-$(nproc)}
export REPRISE_CACHE REPRISE_MODELS

LLAMA_VERSION=0.3.36
LLAMA_DIR=$REPRISE_CACHE/third_party/llama.cpp-$LLAMA_VERSION

# Debian 12 names. ccache is used when it is there, never required.
PACKAGES_BUILD=(build-essential cmake ninja-build python3 python3-pip ca-certificates curl libssl-dev libabsl-dev
                nlohmann-json3-dev libcli11-dev libspdlog-dev libboost1.81-dev libedit-dev libzstd-dev)
PACKAGES_TEST=(libgtest-dev libgmock-dev libbenchmark-dev python3-venv)
PACKAGES_FUZZ=(clang-16 libclang-rt-16-dev)

say() { printf '== %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# install_packages <package>...: those that dpkg does not have, with apt-get's own progress.
install_packages() {
  command -v dpkg-query >/dev/null || return 0  # not Debian: CMake names what it misses
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  local sudo=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "these packages are missing: ${missing[*]}; as root: apt-get install ${missing[*]}"
    sudo=(sudo)
  fi
  say "installing ${#missing[@]} packages: ${missing[*]}"
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends)
  if compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null; then  # a fresh container has none
    "${sudo[@]}" "${install[@]}" "${missing[@]}" </dev/null >&2 && return 0
    say "that failed; once more with fresh package lists"
  fi
  "${sudo[@]}" apt-get update </dev/null >&2 || die "apt-get update failed; see its message above"
  "${sudo[@]}" "${install[@]}" "${missing[@]}" </dev/null >&2 || die "apt-get install failed; see its message above"
}

# retry <attempts> <command>...: for what crosses a network; waits 2, 4, 8 ... seconds in between.
retry() {
  local attempts=$1 attempt wait_s=2
  shift
  for ((attempt = 1; attempt <= attempts; attempt++)); do
    "$@" && return 0
    ((attempt < attempts)) || break
    say "attempt $attempt of $attempts failed; again in $wait_s s"
    sleep $wait_s
    wait_s=$((wait_s * 2))
  done
  return 1
}

# A Python with pip: the first in PATH may be one of the user's own without it.
find_python() {
  local python
  for python in python3 /usr/bin/python3; do
    "$python" -m pip --version >/dev/null 2>&1 && { printf '%s\n' "$python"; return; }
  done
  die "no Python with pip found; on Debian: apt-get install python3-pip"
}

# pip_download <directory> <pip arguments>...: files only; nothing is installed.
pip_download() {
  local directory=$1 bar=on python
  shift
  python=$(find_python)
  [[ -t 2 ]] || bar=off
  retry 3 "$python" -m pip download --no-deps --disable-pip-version-check --progress-bar $bar --dest "$directory" "$@" \
    </dev/null >&2
}

has_digest() {  # <file> <sha256>
  [[ -f $1 ]] && [[ $(sha256sum <"$1" | cut -d' ' -f1) == "$2" ]]
}

# Runs its arguments while holding a lock, so that two builds at once do the work once.
with_lock() {  # <lock file> <command>...
  local lock=$1
  shift
  mkdir -p "$(dirname "$lock")"
  (
    flock -n 9 || { say "another process holds $lock; waiting for it" && flock 9; }
    "$@"
  ) 9>"$lock"
}

ccache_launcher() {
  if command -v ccache >/dev/null; then
    printf '%s\n' -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache
  fi
}

# build_preset <preset> [targets...]: configures (cheap when nothing changed) and builds.
build_preset() {
  local preset=$1 launcher log="$REPO/build/configure-$1.log"
  shift
  mapfile -t launcher < <(ccache_launcher)
  mkdir -p "$REPO/build"
  say "building preset $preset${1:+ ($*)} with $REPRISE_JOBS jobs"
  (
    cd "$REPO"
    cmake --preset "$preset" -DREPRISE_LLAMA_DIR="$LLAMA_DIR" "${launcher[@]}" >"$log" 2>&1 </dev/null ||
      { cat "$log" >&2; die "cmake --preset $preset failed"; }
    cmake --build "build/$preset" --parallel "$REPRISE_JOBS" ${1:+--target "$@"} </dev/null >&2
  )
}

# set_up [packages...]: everything a build needs that is not in the clone.
set_up() {
  install_packages "${PACKAGES_BUILD[@]}" "$@"
  "$REPO/tools/third_party"
}

# get_models <file name>...: into $REPRISE_MODELS.
get_models() {
  "$(find_python)" "$REPO/tools/get_model" "$@"
}

minutes() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }
