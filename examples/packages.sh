# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The packages that dlrun is built and tested with, for every system that we know, in one place.
# To be sourced by bash (3.2 or newer, the one of macOS):
#
#   install_packages SET...   install what is missing of these sets (build, test, package), and nothing else
#   missing_packages SET...   print what is missing, nothing if all is there
#   may_install SET...        say early, and in plain words, why install_packages could not
#   build_environment         let the compiler find what the package manager hides from it
#
# They return 0 or 1. Errors and the package manager's words go to stdout and stderr as they come.

# What to install, by system and set. A|B: either does, A is preferred.
package_list() {
    case $1:$2 in
    debian:build) # and Ubuntu
        echo libgit2-dev libarchive-dev libcurl4-openssl-dev libssh2-1-dev libcjson-dev libyaml-dev \
            libzstd-dev libisal-dev libsqlite3-dev libssl-dev libwslay-dev zlib1g-dev meson ninja-build \
            pkg-config gcc libc6-dev python3 git scdoc
        ;;
    debian:test)
        echo libcmocka-dev ccache clang clang-format clang-tools 'libclang-rt-dev|libclang-rt-14-dev' \
            'mold|binutils' cppcheck pmccabe umoci strace time tmux faketime valgrind \
            zstd zsh fish make man-db locales python3-venv openssl curl \
            docker-registry skopeo 'containerd|containerd.io' 'runc|containerd.io' busybox-static \
            containernetworking-plugins iproute2 iptables \
            openssh-server openssh-client dropbear-bin rsync procps dash tcsh screen mksh podman catatonit python3-torch
        # Ubuntu's is a snap, which not every machine takes: tests that want it are skipped there.
        grep -qs '^ID=ubuntu' /etc/os-release || echo chromium chromium-driver
        ;;
    debian:package) # tests/check/package
        echo debhelper lintian mmdebstrap rpm rpmlint
        ;;
    fedora:build)
        echo libgit2-devel libarchive-devel libcurl-devel libssh2-devel cjson-devel libyaml-devel \
            libzstd-devel isa-l-devel sqlite-devel openssl-devel wslay-devel zlib-devel meson ninja-build \
            pkgconf-pkg-config gcc glibc-devel python3 git scdoc
        ;;
    # The full tests run on Debian and Ubuntu. Elsewhere: what is surely there under these names;
    # tests that want more say so and are skipped.
    fedora:test)
        echo libcmocka-devel ccache mold clang clang-tools-extra compiler-rt cppcheck skopeo strace tmux \
            libfaketime valgrind busybox zsh fish man-db e2fsprogs
        ;;
    arch:build)
        echo libgit2 libarchive curl libssh2 cjson libyaml zstd isa-l sqlite openssl libwslay zlib meson \
            ninja pkgconf gcc glibc python git scdoc
        ;;
    arch:test)
        echo cmocka ccache mold clang compiler-rt cppcheck skopeo strace tmux libfaketime valgrind busybox zsh \
            fish man-db e2fsprogs
        ;;
    macos:build) # compiler, git and python3 come with the command line tools
        echo libgit2 libarchive curl libssh2 cjson libyaml zstd isa-l sqlite openssl@3 wslay zlib meson \
            ninja pkgconf scdoc
        ;;
    macos:test)
        echo cmocka ccache cppcheck skopeo tmux zsh fish
        ;;
    esac
}

# Print debian, fedora, arch, macos or unknown.
package_system() {
    local ids
    if [ "$(uname -s)" = Darwin ]; then
        echo macos
        return
    fi
    # A subshell, as the file sets many variables.
    # shellcheck source=/dev/null
    ids=$( (. /etc/os-release && echo " ${ID:-} ${ID_LIKE:-} ") 2>/dev/null) || ids=
    case $ids in
    *' debian '* | *' ubuntu '*) echo debian ;;
    *' fedora '*) echo fedora ;;
    *' arch '*) echo arch ;;
    *) echo unknown ;;
    esac
}

missing_packages() {
    local system name set
    system=$(package_system)
    case $system in
    debian) missing_of "$(debian_installed)" "$system" "$@" ;;
    macos) missing_of "$(brew list --formula -1 2>/dev/null)" "$system" "$@" ;;
    fedora)
        for set in "$@"; do
            for name in $(package_list fedora "$set"); do
                rpm -q --whatprovides "$name" >/dev/null 2>&1 || echo "$name"
            done
        done
        ;;
    arch)
        for set in "$@"; do
            # shellcheck disable=SC2046 # words are what is wanted; pacman -T prints what is missing
            pacman -T $(package_list arch "$set") || true
        done
        ;;
    unknown) missing_parts ;;
    esac
}

debian_installed() {
    # shellcheck disable=SC2016 # these are fields of dpkg's, not variables
    dpkg-query -W -f='${db:Status-Status} ${Package}\n' 2>/dev/null | sed -n 's/^installed //p'
}

# missing_of INSTALLED SYSTEM SET...: INSTALLED holds one name a line
missing_of() {
    local installed=$1 system=$2 set name newline=$'\n'
    shift 2
    for set in "$@"; do
        for name in $(package_list "$system" "$set"); do
            # A|B becomes two patterns, either of which may match a whole line.
            grep -qxF -e "${name//|/$newline}" <<<"$installed" || echo "$name"
        done
    done
}

# On a system without a list we can still look for the parts themselves.
missing_parts() {
    local part
    for part in cc meson ninja pkg-config git python3; do
        command -v "$part" >/dev/null || echo "$part"
    done
    for part in libgit2 libarchive libcurl libssh2 libcjson yaml-0.1 libzstd sqlite3 openssl zlib; do
        pkg-config --exists "$part" 2>/dev/null || echo "$part"
    done
    cc -E -x c - <<<'#include <wslay/wslay.h>' >/dev/null 2>&1 || echo wslay
}

may_install() {
    local missing
    missing=$(missing_packages "$@" | sed 's/|.*//' | tr '\n' ' ')
    [ -n "$missing" ] || return 0
    case $(package_system) in
    unknown)
        echo "error: no package list for this system; missing: $missing"
        echo "hint: install them with their headers, then run this again"
        return 1
        ;;
    macos)
        command -v brew >/dev/null && return
        echo "error: Homebrew is not installed; missing: $missing"
        echo "hint: see https://brew.sh, then run this again"
        return 1
        ;;
    esac >&2
    may_be_root && return
    echo "hint: as root: $(install_command) $missing" >&2
    return 1
}

install_command() {
    case $(package_system) in
    debian) echo apt-get install ;;
    fedora) echo dnf install ;;
    arch) echo pacman -S --needed ;;
    esac
}

may_be_root() {
    if [ "$(id -u)" = 0 ]; then
        return
    elif ! command -v sudo >/dev/null; then
        echo "error: packages are missing, and you are not root and have no sudo" >&2
    elif [ -t 0 ]; then
        # Not `sudo -v`: it asks for a password even where sudo itself needs none.
        sudo true && return
        echo "error: packages are missing, and sudo does not let you install them" >&2
    else
        sudo -n true 2>/dev/null && return
        echo "error: packages are missing, and sudo wants a password, but there is no terminal" >&2
    fi
    return 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif [ -t 0 ]; then
        sudo "$@"
    else
        sudo -n "$@"
    fi
}

install_packages() {
    local missing=()
    # shellcheck disable=SC2207 # names of packages hold no spaces or stars
    missing=($(missing_packages "$@"))
    [ ${#missing[@]} -gt 0 ] || return 0
    may_install "$@" || return
    case $(package_system) in
    debian) apt_install "${missing[@]}" ;;
    fedora) as_root dnf install -y "${missing[@]}" ;;
    arch) pacman_install "${missing[@]}" ;;
    macos) HOMEBREW_NO_ENV_HINTS=1 brew install "${missing[@]}" ;;
    esac
}

apt_install() {
    local names=() name
    # A new machine has no lists, an old one has stale ones. One broken source need not matter.
    as_root apt-get update -q || echo "warning: apt-get update failed; going on with the old lists" >&2
    for name in "$@"; do
        names+=("$(apt_choose "$name")")
    done
    # Nothing may ask a question that nobody sees, nothing that is installed may go away for this,
    # and no service is restarted. Another apt at work (a new machine's first upgrade) is waited for.
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get install -y -q \
        --no-install-recommends --no-remove -o DPkg::Lock::Timeout=300 \
        -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "${names[@]}" || return
    services_off "${names[@]}"
}

# The tests start their own of these; nobody asked for one that starts with the machine.
services_off() {
    local name
    [ -d /run/systemd/system ] || return 0
    for name in "$@"; do
        case $name in
        docker-registry | containerd) as_root systemctl disable --quiet --now "$name" || true ;;
        openssh-server) as_root systemctl disable --quiet --now ssh.service ssh.socket || true ;;
        esac
    done
}

# apt_choose 'A|B': print the first that this release has; the first of all if it has none.
apt_choose() {
    local name
    for name in ${1//|/ }; do
        if apt-cache show "$name" >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    echo "${1%%|*}"
}

pacman_install() {
    local refresh=
    # Only where there are no lists at all: new lists with old packages make a broken system.
    [ -e /var/lib/pacman/sync/core.db ] || refresh=y
    as_root pacman -S$refresh --needed --noconfirm "$@" && return
    echo "hint: if a package was not found, bring the system up to date (pacman -Syu) and run this again" >&2
    return 1
}

build_environment() {
    local prefix name
    [ "$(package_system)" = macos ] || return 0
    # Homebrew does not link what macOS has a version of, and wslay is looked for without pkg-config.
    prefix=$(brew --prefix)
    for name in libarchive curl sqlite openssl@3 zlib; do
        PKG_CONFIG_PATH=$prefix/opt/$name/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    done
    export PKG_CONFIG_PATH
    export CPATH=$prefix/include${CPATH:+:$CPATH}
    export LIBRARY_PATH=$prefix/lib${LIBRARY_PATH:+:$LIBRARY_PATH}
}
