#!/usr/bin/env bash
# wine.sh FOLDER PROGRAM.exe [ARGUMENT...]: runs a Windows program under Wine; FOLDER (made when it is not there) is Wine's own. Wine's
# libraries are used from where they are installed: the usual copy takes 700 MB and a quarter of a minute, for windows that nobody opens.
set -euo pipefail
folder=$1
shift

if [[ ! -d $folder ]]; then
    made=$(mktemp -d "$folder.XXXXXX")
    for libraries in /usr/lib/*/wine/x86_64-windows; do
        [[ -d $libraries ]] || continue
        mkdir -p "$made/drive_c/windows"
        ln -s "$libraries" "$made/drive_c/windows/system32"
        echo disable >"$made/.update-timestamp"
        break
    done
    mv -T "$made" "$folder" 2>/dev/null || rm -rf "$made" # another run was faster
fi
# The debugger that Wine starts for a program that crashes at times makes its exit code 0.
export WINEPREFIX=$folder WINEDEBUG=${WINEDEBUG:--all} WINEDLLOVERRIDES='winedbg.exe=d'
exec wine "$@"
