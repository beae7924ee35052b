//! Arrays, by the program: made, damaged, replaced, and under a pool.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ashlar-array-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a scratch directory");
        Scratch(path)
    }
    fn ashlar(&self, arguments: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
        command.current_dir(&self.0).args(arguments.split_whitespace()).output().expect("the program runs")
    }
    /// Standard output of a command that must succeed.
    fn ok(&self, arguments: &str) -> String {
        let output = self.ashlar(arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{arguments}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }
    /// What a command that must fail says.
    fn fails(&self, arguments: &str) -> String {
        let output = self.ashlar(arguments);
        assert!(!output.status.success(), "{arguments} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
    fn at(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }
}
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const MAKE: &str = "array create --level raid5 --journal 1MiB --unit 64KiB --device a,size=8MiB --device b,size=8MiB --device c,size=8MiB";
const ALL: &str = "--device a --device b --device c";

/// Writes noise over a part of a file.
fn scribble(path: &Path, at: u64, len: usize) {
    use std::os::unix::fs::FileExt;
    let noise: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8 | 1).collect();
    let file = std::fs::File::options().write(true).open(path).expect("a member");
    file.write_all_at(&noise, at).expect("scribbled");
}

fn stack(scratch: &Scratch) {
    let files = ["a", "b", "c"].map(|name| format!("layer.{name}.file.path = {:?}\n", scratch.at(name)));
    let text = format!("devices = [\"array\"]\nlayer.array.raid.of = [\"a\", \"b\", \"c\"]\n{}", files.concat());
    std::fs::write(scratch.at("stack.toml"), text).expect("a stack file");
}

#[test]
fn an_array_is_made_checked_and_refused_where_it_must_be() {
    let scratch = Scratch::new("made");
    assert!(scratch.ok(MAKE).starts_with("made a raid5 of"));
    assert!(scratch.fails(MAKE).contains("--force overwrites it"));
    let status = scratch.ok(&format!("array status {ALL}"));
    assert_eq!(status.matches("active").count(), 3, "{status}");
    assert!(scratch.fails("array scrub --device a --device b").contains("members [2] of 3 are not among the devices"));
    scratch.ok(&format!("array check {ALL}"));
    // A blank device below a stack is refused, and not formatted.
    std::fs::File::create(scratch.at("c")).and_then(|file| file.set_len(8 << 20)).expect("a blank file");
    stack(&scratch);
    let blank = scratch.fails("pool create pool --stack stack.toml");
    assert!(blank.contains("c bears no array: make one with `ashlar array create`"), "{blank}");
    let schema: serde_json::Value =
        serde_json::from_str(&scratch.ok("array scrub --device a --json-schema")).expect("a schema");
    assert!(schema.get("$schema").is_some(), "{schema}");
}

#[test]
fn a_pool_outlives_a_member() {
    let scratch = Scratch::new("pool");
    scratch.ok(&MAKE.replace("8MiB", "80MiB"));
    stack(&scratch);
    scratch.ok("pool create pool --stack stack.toml");
    scratch.ok("fs create main --pool pool");
    scribble(&scratch.at("b"), 3 << 20, 70 << 20);
    scratch.ok("check --pool pool");
    assert_eq!(
        scratch.ashlar("array check --pool pool").status.code(),
        Some(1),
        "something is wrong, and nobody mends it"
    );
    let scrubbed = scratch.ok("array scrub --pool pool");
    assert!(scrubbed.contains(" 0 of them beyond repair") && !scrubbed.contains(": 0 blocks were wrong"), "{scrubbed}");
    assert!(scratch.ok("array check --pool pool").contains(": 0 blocks are wrong"));
    std::fs::remove_file(scratch.at("a")).expect("it was there");
    scratch.ok("check --pool pool");
    let status = scratch.ok("array status --pool pool");
    assert!(status.contains("0  failed"), "{status}");
    let replaced = scratch.ok("array replace --pool pool --member 0 --with d,size=80MiB");
    assert!(replaced.contains("rebuilt: members [0]"), "{replaced}");
    assert_eq!(scratch.ok("array status --pool pool").matches("active").count(), 3);
    std::fs::remove_file(scratch.at("b")).expect("it was there");
    scratch.ok("check --pool pool");
    assert!(scratch.ok("fs list --pool pool").contains("main"));
}
