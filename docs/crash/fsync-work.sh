#!/bin/sh
# Files that are written, fsynced, and then acknowledged.
set -e
for n in 1 2 3 4 5 6 7 8 9 10; do
    dd if=/dev/urandom of="$1/file$n" bs=4k count=8 conv=fsync status=none
    sum=$(sha256sum < "$1/file$n")
    ashlar prove mark "file$n $sum"
done
