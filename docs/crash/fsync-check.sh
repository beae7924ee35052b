#!/bin/sh
cd "$1" || exit 1
while read -r name sum rest; do
    [ "$(sha256sum < "$name")" = "$sum  -" ] || { echo "$name was acknowledged and is gone or damaged"; exit 1; }
done
