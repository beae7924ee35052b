//! Buckets and objects through the program: without a server, over S3, after a kill, and beside file systems.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// A directory with a pool, which goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ashlar-objects-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        let scratch = Scratch(path);
        scratch.done(&["pool", "create", "data", "--device", "device,size=1GiB"]);
        scratch
    }
    fn command(&self, line: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
        command.args(line).current_dir(&self.0).env("ASHLAR_POOL", self.0.join("data")).stdin(Stdio::null());
        command
    }
    fn run(&self, line: &[&str]) -> Output {
        self.command(line).output().expect("it runs")
    }
    /// What a command prints that succeeds.
    fn done(&self, line: &[&str]) -> String {
        let output = self.run(line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
    /// What a command says that fails.
    fn fails(&self, line: &[&str]) -> String {
        let output = self.run(line);
        assert!(!output.status.success(), "{line:?} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
    fn serve(&self, more: &[&str]) -> Server {
        let mut child = self
            .command(&["s3", "serve", "--listen", "127.0.0.1:0"])
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut said = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("text");
        let address = line.trim().rsplit('/').next().unwrap_or_default().to_string();
        assert!(line.starts_with("S3 at http"), "{line}");
        // What it says later must find a reader.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Server { child, address }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Sends a request without a signature; the answer.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).expect("it reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        answer
    }
    fn signal(&mut self, signal: rustix::process::Signal) -> bool {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it runs");
        self.child.wait().expect("it ends").success()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn noise(len: usize) -> Vec<u8> {
    let mut word = len as u64;
    let mut next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn objects_without_a_server() {
    let scratch = Scratch::new("verbs");
    let large = noise(20_000_001);
    std::fs::write(scratch.0.join("large"), &large).expect("a file");
    std::fs::write(scratch.0.join("small"), b"small").expect("a file");
    scratch.done(&["bucket", "create", "photos", "--engine", "pool"]);
    assert!(scratch.fails(&["bucket", "create", "photos", "--engine", "pool"]).contains("already"));
    assert!(scratch.fails(&["bucket", "create", "A_B", "--engine", "pool"]).contains("3 to 63"));
    assert!(scratch.fails(&["bucket", "create", "x-y", "--engine", "pool", "--device", "d"]).contains("--device"));
    scratch.done(&["objects", "put", "photos/a/", "large"]);
    scratch.done(&["objects", "put", "photos/a/small", "small", "--new"]);
    assert!(scratch.fails(&["objects", "put", "photos/a/small", "large", "--new"]).contains("already"));
    scratch.done(&["objects", "get", "photos/a/large", "back"]);
    assert!(std::fs::read(scratch.0.join("back")).expect("a file") == large);
    let listed = scratch.done(&["objects", "list", "photos/a/"]);
    assert!(listed.contains("20000001  a/large") && listed.contains("5  a/small"), "{listed}");
    let stat = scratch.done(&["--json", "objects", "stat", "photos/a/small"]);
    assert!(stat.contains(r#""size": 5"#), "{stat}");
    assert!(scratch.fails(&["objects", "stat", "photos/none"]).contains("no object"));
    assert!(scratch.fails(&["objects", "stat", "none/none"]).contains("bucket list"));
    let verified = scratch.done(&["objects", "verify", "photos"]);
    assert!(verified.contains("2 objects") && verified.contains("in order"), "{verified}");
    // Beside file systems: not one of them, and checked with them.
    assert_eq!(scratch.done(&["fs", "list"]), "");
    assert!(scratch.fails(&["fs", "destroy", "bucket:photos"]).contains("ashlar bucket"));
    assert!(scratch.done(&["check"]).contains("in order"));
    assert!(scratch.fails(&["bucket", "rm", "photos"]).contains("--force"));
    scratch.done(&["objects", "rm", "photos/a/small"]);
    assert!(scratch.done(&["objects", "rm", "--recursive", "photos"]).contains("deleted 1 objects"));
    scratch.done(&["bucket", "rm", "photos"]);
    assert!(scratch.done(&["bucket", "list"]).contains("no buckets"));
}

#[test]
fn served_killed_and_served_again() {
    let scratch = Scratch::new("serve");
    scratch.done(&["bucket", "create", "photos", "--engine", "pool"]);
    scratch.done(&["bucket", "create", "cache", "--engine", "memory"]);
    let large = noise(9_000_000);
    let mut server = scratch.serve(&[]);
    let ok = |answer: Vec<u8>| assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    ok(server.ask("PUT", "/photos/large", &large));
    ok(server.ask("PUT", "/cache/fleeting", b"x"));
    ok(server.ask("PUT", "/made", b""));
    ok(server.ask("PUT", "/made/small", b"small"));
    assert!(scratch.fails(&["objects", "list", "photos"]).contains("device"), "the server has the pool");
    // In the middle of a body.
    let mut half = TcpStream::connect(&server.address).expect("it listens");
    let head = format!("PUT /photos/half HTTP/1.1\r\nHost: {}\r\nContent-Length: 30000000\r\n\r\n", server.address);
    half.write_all(head.as_bytes()).and_then(|()| half.write_all(&noise(18_000_000))).expect("it reads");
    server.signal(rustix::process::Signal::KILL);
    let mut server = scratch.serve(&[]);
    let back = server.ask("GET", "/photos/large", b"");
    assert!(back.ends_with(&large), "what was answered is there after a kill");
    assert!(server.ask("GET", "/made/small", b"").ends_with(b"small"));
    assert!(server.ask("GET", "/photos/half", b"").starts_with(b"HTTP/1.1 404"));
    assert!(server.ask("GET", "/cache/fleeting", b"").starts_with(b"HTTP/1.1 404"));
    assert!(server.signal(rustix::process::Signal::INT), "Ctrl-C ends it cleanly");
    let listed = scratch.done(&["bucket", "list"]);
    assert!(listed.contains("made") && listed.contains("photos") && listed.contains("memory"), "{listed}");
    assert!(scratch.done(&["objects", "verify", "photos"]).contains("1 objects"));
    assert!(scratch.fails(&["objects", "list", "cache"]).contains("memory"));
    assert!(scratch.done(&["check"]).contains("in order"));
}

#[test]
fn serving_is_refused_where_it_is_not_safe() {
    let scratch = Scratch::new("refused");
    assert!(scratch.fails(&["s3", "serve", "--listen", "0.0.0.0:0"]).contains("credentials"));
    let keys = scratch.0.join("keys");
    std::fs::write(&keys, "KEY secret\n").expect("a file");
    let keys = keys.to_str().expect("text");
    assert!(scratch.fails(&["s3", "serve", "--credentials", keys]).contains("chmod 600"));
    assert!(scratch.fails(&["s3", "serve", "--tls-cert", keys, "--tls-key", keys]).contains("keys"));
    std::fs::write(scratch.0.join("data/buckets.toml"), "[bucket.photos]\nengine = 'none'\ncreated = 1\n")
        .expect("a file");
    assert!(scratch.fails(&["objects", "list", "photos"]).contains("engine"));
    std::fs::write(scratch.0.join("data/buckets.toml"), "bucket = 1").expect("a file");
    assert!(scratch.fails(&["bucket", "list"]).contains("buckets.toml"));
}

#[test]
fn a_bucket_on_a_device_of_its_own() {
    let scratch = Scratch::new("regions");
    let file = std::fs::File::create(scratch.0.join("disk")).expect("a file");
    file.set_len(4 << 30).expect("room");
    let make = ["bucket", "create", "photos", "--engine", "regions", "--device", "disk"];
    assert!(scratch.fails(&make[..5]).contains("--device"));
    scratch.done(&make);
    std::fs::write(scratch.0.join("file"), noise(5_000_000)).expect("a file");
    scratch.done(&["objects", "put", "photos/file", "file"]);
    scratch.done(&["objects", "get", "photos/file", "back"]);
    assert!(std::fs::read(scratch.0.join("back")).expect("a file") == noise(5_000_000));
    assert!(scratch.done(&["objects", "verify", "photos"]).contains("1 objects"));
    scratch.done(&["bucket", "rm", "photos", "--force"]);
    assert!(scratch.fails(&make).contains("force"));
    scratch.done(&[&make[..], &["--force"]].concat());
    assert_eq!(scratch.done(&["objects", "list", "photos"]), "");
}

#[test]
fn a_region_is_repaired_while_it_is_served() {
    use ashlar_regions::{Config, Kind, Layout, Status};
    use std::os::unix::fs::FileExt;

    const CAPACITY: u64 = 4 << 30;
    let scratch = Scratch::new("repair");
    let file = std::fs::File::options().create_new(true).read(true).write(true).open(scratch.0.join("disk"));
    let file = file.expect("a file");
    file.set_len(CAPACITY).expect("room");
    scratch.done(&["bucket", "create", "photos", "--engine", "regions", "--device", "disk"]);
    let body = |number: usize| noise([524_288, 30_000, 4000][number % 3] + number);
    let path = |number: usize| format!("/photos/{number:02}");
    let get = |server: &Server, number: usize| {
        let answer = server.ask("GET", &path(number), b"");
        assert!(answer.ends_with(&body(number)) && answer.starts_with(b"HTTP/1.1 200"), "object {number}");
    };
    let mut server = scratch.serve(&[]);
    for number in 0..24 {
        assert!(server.ask("PUT", &path(number), &body(number)).starts_with(b"HTTP/1.1 200"));
    }
    assert!(server.signal(rustix::process::Signal::INT));

    let map: Status = serde_json::from_str(&scratch.done(&["--json", "regions", "disk"])).expect("a map");
    let of = |kind| map.regions.iter().find(|region| region.kind == kind && region.objects > 0).expect("one").region;
    let (small, large) = (of(Kind::Small), of(Kind::Large));
    let layout = Layout::new(ashlar_units::Blocks(CAPACITY / 4096), &Config::default()).expect("a layout");
    let heads = noise(2 * layout.shape.head as usize * 4096);
    file.write_all_at(&heads, layout.head(small, 0).0 * 4096).expect("a disk");
    let others = || {
        let mut image = vec![0; Config::default().region.0 as usize];
        file.read_exact_at(&mut image, layout.region(large).0 * 4096).expect("a disk");
        image
    };

    let mut server = scratch.serve(&[]);
    (0..24).for_each(|number| get(&server, number));
    let before = others();
    let region = small.to_string();
    let check = ["check", "disk", "--region", &region];
    let elsewhere = scratch.command(&check).env("ASHLAR_POOL", &scratch.0).output().expect("it runs");
    let said = String::from_utf8_lossy(&elsewhere.stderr).into_owned();
    assert!(!elsewhere.status.success() && said.contains("--pool") && said.contains("s3 serve"), "{said}");
    let found = scratch.run(&[&["--json"], &check[..]].concat());
    let report: serde_json::Value = serde_json::from_slice(&found.stdout).expect("a report");
    assert!(!found.status.success() && report["problems"][0].as_str().is_some(), "{report}");
    let damaged = scratch.done(&["regions", "photos"]);
    assert_eq!(damaged.matches("damaged").count(), 1, "{damaged}");

    // Readers and writers go on while it is repaired, again and again.
    let done = std::sync::atomic::AtomicBool::new(false);
    let read = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut read = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) || read < 24 {
                get(&server, read % 24);
                read += 1;
            }
            read
        });
        let repaired = scratch.done(&[&check[..], &["--repair"]].concat());
        assert!(repaired.contains("mended"), "{repaired}");
        for _ in 0..3 {
            assert!(scratch.done(&check).contains("nothing is wrong"));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        reader.join().expect("every object is there")
    });
    assert!(read >= 24);
    assert!(others() == before, "another region is as it was");
    assert!(scratch.done(&["check", "disk"]).contains("nothing is wrong"));
    assert!(!scratch.done(&["regions", "disk"]).contains("damaged"));
    assert!(scratch.fails(&["check", "disk", "--region", "99"]).contains("there is no region 99"));
    assert!(server.signal(rustix::process::Signal::INT), "Ctrl-C ends it cleanly");
    assert!(!scratch.0.join("data/stores.sock").exists());
    assert!(scratch.done(&["check", "disk"]).contains("nothing is wrong"), "and without the server");
}

#[test]
fn a_bucket_on_a_disk_with_staging_goes_with_its_devices() {
    let scratch = Scratch::new("proximal");
    for (file, len) in [("disk", 64 << 20), ("flash", 96 << 20)] {
        std::fs::File::create(scratch.0.join(file)).and_then(|file| file.set_len(len)).expect("a sparse file");
    }
    // A file that a failed command made is gone again; one that was there stays.
    let small =
        ["bucket", "create", "photos", "--engine", "proximal", "--device", "disk", "--staging", "tiny,size=1MiB"];
    scratch.fails(&small);
    assert!(scratch.0.join("disk").exists() && !scratch.0.join("tiny").exists());
    let make = ["bucket", "create", "photos", "--engine", "proximal", "--device", "disk", "--staging", "flash"];
    assert!(scratch.fails(&make[..7]).contains("needs --staging"), "a staging device is needed");
    scratch.done(&make);
    let list = scratch.done(&["bucket", "list"]);
    assert!(list.contains("disk") && list.contains("flash"), "{list}");
    // Small ones wait on flash; a large one goes to the disk.
    for (name, len) in [("small", 5_000), ("large", 3_000_001)] {
        std::fs::write(scratch.0.join(name), noise(len)).expect("a file");
        scratch.done(&["objects", "put", "photos/", name]);
        scratch.done(&["objects", "get", &format!("photos/{name}"), "back"]);
        assert!(std::fs::read(scratch.0.join("back")).expect("a file") == noise(len), "{name} differs");
    }
    let verified = scratch.done(&["objects", "verify", "photos"]);
    assert!(verified.contains("verified 2 objects") && verified.contains("everything is in order"), "{verified}");
    scratch.done(&["objects", "rm", "photos/large"]);
    assert!(scratch.fails(&["bucket", "rm", "photos"]).contains("--force"), "there is something in it");
    scratch.done(&["bucket", "rm", "photos", "--force"]);
    assert!(scratch.fails(&make).contains("--force"), "the devices hold an empty store");
}
