//! File systems that mount(8) mounts, as of /etc/fstab. Needs root and /dev/fuse, and unshare and mount of util-linux.

use ashlar_prove::Daemon;
use std::path::Path;
use std::process::Command;

/// In a mount namespace of its own, where /sbin has the helpers.
const DAY: &str = r#"
set -eu
mount -t tmpfs none "$1"
mkdir "$1/sbin" "$1/one" "$1/two"
cp -a /usr/sbin/. "$1/sbin"
ln -sf "$2" "$1/sbin/mount.fuse.ashlar"
ln -sf "$2" "$1/sbin/umount.fuse.ashlar"
mount --bind "$1/sbin" /usr/sbin
ashlar="$2"
cd "$1"
trap '"$ashlar" down --pool p' EXIT
echo "$1/p $1/one fuse.ashlar fs=photos,memory=64MiB,nosuid,noatime,nofail,x-systemd.requires-mounts-for=/srv 0 0" > fstab
echo "$1/p $1/two fuse.ashlar ro,fs=music 0 0" >> fstab
"$ashlar" pool create p --device disk,size=256MiB
"$ashlar" fs create photos --pool p
"$ashlar" fs create music --engine betr --pool p

mount -T fstab -a
mount -T fstab -a
[ "$(grep -c fuse.ashlar /proc/mounts)" = 2 ]
grep "^$1/p $1/one fuse.ashlar rw,nosuid,noatime," /proc/mounts
echo something > one/a
if touch two/a 2>/dev/null; then exit 1; fi
mount -T fstab -o remount,rw "$1/two"
echo something > two/a

# Of what is written after a file was read an access time is only kept off by noatime.
read_at=$(stat -c %x one/a)
umount one
[ -e p/control.sock ]
mount -T fstab one
cat one/a
[ "$(stat -c %x one/a)" = "$read_at" ]

# With the last one the server has ended when umount returns.
if (cd one; umount "$1/one") 2>said; then exit 1; fi
grep 'it is in use' said
umount one
umount two
if [ -e p/control.sock ]; then exit 1; fi
for round in 1 2 3 4 5; do
    mount -T fstab one & other=$!
    mount -T fstab two
    wait "$other"
    umount one & other=$!
    umount two
    wait "$other"
done
(mount -T fstab one; cd one; umount -l "$1/one"; cat a)

code=0; mount -t fuse.ashlar p one -o frobnicate 2>said || code=$?
[ "$code" = 1 ]
grep '"frobnicate" is no flag' said
code=0; mount -t fuse.ashlar none one 2>said || code=$?
[ "$code" = 32 ]
grep 'there is no pool' said
"$ashlar" check --pool p
"#;

#[test]
fn file_systems_of_fstab_are_mounted_and_unmounted() {
    if Daemon::is_skipped() {
        return;
    }
    let home = std::env::temp_dir().join(format!("ashlar-fstab-{}", std::process::id()));
    std::fs::create_dir(&home).expect("a directory");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", DAY, "sh"]);
    let output = command.arg(&home).arg(Path::new(env!("CARGO_BIN_EXE_ashlar"))).output().expect("it runs");
    std::fs::remove_dir(&home).expect("what was mounted went with the namespace");
    let [out, error] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{out}\n{error}");
}
