//! A pool of somebody who is not root. Needs root, to become somebody else; fusermount3; and unshare and setpriv of util-linux.

use ashlar_prove::Daemon;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// In a mount namespace of its own: everybody may open /dev/fuse, as on most systems.
const AS_NOBODY: &str = r#"
set -eu
mount -t tmpfs -o dev none "$1"
cp "$2" "$1/ashlar"
mknod "$1/fuse" c 10 229
chmod 666 "$1/fuse"
mount --bind "$1/fuse" /dev/fuse
mkdir "$1/home"
chown 65534:65534 "$1/home"
cd "$1/home"
exec setpriv --reuid 65534 --regid 65534 --clear-groups env HOME="$1/home" sh -euc "$3" sh "$1/ashlar"
"#;

const DAY: &str = r#"
ashlar="$1"
trap '"$ashlar" down --pool p' EXIT
mkdir mnt closed
chmod 555 closed
"$ashlar" pool create p --device disk,size=64MiB
if "$ashlar" up --pool p --mount closed --detach 2>said; then exit 1; fi
grep 'neither can fusermount3' said
"$ashlar" up --pool p --mount mnt --detach
grep ' fuse.ashlar ' /proc/mounts
echo something > mnt/a
mkdir mnt/d
mv mnt/a mnt/d/b
sync -f mnt/d/b
[ "$(stat -c %u:%g mnt/d/b)" = 65534:65534 ]
"$ashlar" check --pool p
pid=$("$ashlar" status --json --pool p | sed -n 's/^ *"pid": \([0-9]*\),/\1/p')
kill -9 "$pid"
while kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
"$ashlar" up --pool p --mount mnt --detach
[ "$(cat mnt/d/b)" = something ]
cd mnt
"$ashlar" down --pool ../p | grep 'mnt was in use'
cd ..
if grep ' fuse.ashlar ' /proc/mounts; then exit 1; fi
"$ashlar" check --pool p
"$ashlar" snapshot create main@one --pool p
"$ashlar" up --pool p --fs main@one --mount mnt --detach
[ "$(cat mnt/d/b)" = something ]
if touch mnt/c 2>/dev/null; then exit 1; fi
"$ashlar" down --pool p
if grep ' fuse.ashlar ' /proc/mounts; then exit 1; fi
"#;

#[test]
fn a_user_has_a_pool_of_his_own() {
    let has = |tool: &str| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|at| at.join(tool).exists())
    };
    if Daemon::is_skipped() {
        return;
    }
    if !["fusermount3", "unshare", "setpriv"].iter().all(|tool| has(tool)) {
        eprintln!("SKIPPED: fusermount3, unshare or setpriv is missing");
        return;
    }
    let home = std::env::temp_dir().join(format!("ashlar-nobody-{}", std::process::id()));
    std::fs::create_dir(&home).expect("a directory");
    std::fs::set_permissions(&home, PermissionsExt::from_mode(0o755)).expect("it is ours");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", AS_NOBODY, "sh"]);
    let output = command.arg(&home).arg(Path::new(env!("CARGO_BIN_EXE_ashlar"))).arg(DAY).output().expect("it runs");
    std::fs::remove_dir(&home).expect("what was mounted went with the namespace");
    let [out, error] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{out}\n{error}");
}
