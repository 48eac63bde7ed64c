#!/usr/bin/env bash
# install.sh BUILD SOURCE: installs the build into an empty folder and builds and runs examples/consumer against it in each way that a user
# may: pkg-config, find_package, and add_subdirectory on the sources. Also runs the installed command.
set -euo pipefail
build=$(realpath "$1") source=$(realpath "$2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "install.sh: $*" >&2; exit 1; }

# DESTDIR puts the prefix elsewhere, and nothing installed may mind.
DESTDIR=$folder/root cmake --install "$build" --prefix /opt/attn >"$folder/log"
prefix=$folder/root/opt/attn
[[ -z $(find "$folder/root" -type f ! -path "$prefix/*") ]] || fail "installed something outside of the prefix"
for name in include/attn/attn.h share/man/man1/attn.1 bin/attn; do [[ -f $prefix/$name ]] || fail "$name is not installed"; done
library=$(dirname "$(find "$prefix" -name libattn.so)")
[[ -f $library/libattn.a && -e $library/libattn.so.0 ]] || fail "libattn.a or libattn.so.0 is not installed"
! grep -rIlF -e "$build" -e "$source" "$prefix" || fail "these files name the folder that they were built in"
env -u LD_LIBRARY_PATH "$prefix/bin/attn" info >/dev/null

run() { # NAME PROGRAM
    LD_LIBRARY_PATH=${3-} "$2" >"$folder/out" || { cat "$folder/out"; fail "$1: wrong result"; }
    echo "$1: $(tail -n 1 "$folder/out")"
}

cp -r "$source/examples/consumer" "$folder/consumer"
export PKG_CONFIG_PATH=$library/pkgconfig
version=$(sed -n 's/.*ATTN_VERSION_TEXT "\(.*\)".*/\1/p' "$source/src/version.h")
[[ $(pkg-config --modversion attn) == "$version" ]] || fail "attn.pc has another version than src/version.h"
make -s -C "$folder/consumer"
run pkg-config "$folder/consumer/consumer" "$library"
cc -O2 "$folder/consumer/consumer.c" -o "$folder/static" $(pkg-config --cflags attn) "$library/libattn.a" \
    $(pkg-config --static --libs attn | sed 's/-lattn\b//') -lm
run "pkg-config, static" "$folder/static"

for way in "find_package -DCMAKE_PREFIX_PATH=$prefix" "add_subdirectory -DATTN_SOURCE=$source"; do
    read -r name option <<<"$way"
    { cmake -S "$folder/consumer" -B "$folder/$name" -G Ninja "$option" -DCMAKE_BUILD_TYPE=Release && cmake --build "$folder/$name"; } \
        >"$folder/log" || { cat "$folder/log"; fail "$name: does not build"; }
    run "$name" "$folder/$name/consumer"
    run "$name, static" "$folder/$name/consumer_static"
done
