//! A thousand clients at once: what they make the server hold is bounded. Alone in its process, since it measures it.

mod common;

use ashlar_s3::Limits;
use ashlar_units::Bytes as Size;
use common::{KEY, SECRET, Served, noise};
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const CLIENTS: usize = 1000;
const MEMORY: Size = Size::mib(32);

/// Memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it is there");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number");
    kib << 10
}

#[test]
fn a_thousand_clients() {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let more = rustix::process::Rlimit { current: files.maximum, ..files };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, more).expect("files for sockets");
    let limits = Limits {
        clients: CLIENTS + 10,
        memory: MEMORY,
        wait: Duration::from_secs(3),
        patience: Duration::from_secs(3),
        ..Limits::default()
    };
    let served = Served::with_limits(limits);
    let store = served.bucket("photos");
    let bucket = Bucket::new(served.endpoint().parse().expect("a URL"), UrlStyle::Path, "photos", "us-east-1");
    let (bucket, signer) = (bucket.expect("a bucket"), Credentials::new(KEY, SECRET));
    let part = noise(100_000);
    let before = resident();
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let url = bucket.put_object(Some(&signer), &format!("key {number}")).sign(Duration::from_secs(600));
        let mut stream = TcpStream::connect(served.address()).expect("the server listens");
        let (path, query) = (url.path(), url.query().unwrap_or_default());
        let head =
            format!("PUT {path}?{query} HTTP/1.1\r\nHost: {}\r\nContent-Length: 8000000\r\n\r\n", served.address());
        stream.write_all(head.as_bytes()).expect("it reads");
        // As much as fits: those that hold no memory are not read from.
        stream.set_nonblocking(true).expect("a socket");
        let _ = stream.write(&part);
        clients.push(stream);
    }
    let mut most = 0;
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(50));
        most = most.max(resident().saturating_sub(before));
    }
    // Bodies, and for each connection what HTTP needs: head, buffers of up to 128 KiB, two tasks.
    let bound = MEMORY.0 + CLIENTS as u64 * (160 << 10);
    assert!(most < bound, "{CLIENTS} clients took {most} bytes; {bound} would do");
    let mut refused = 0;
    for client in &mut clients {
        client.set_nonblocking(false).expect("a socket");
        client.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
        let mut answer = [0; 1000];
        let len = client.read(&mut answer).unwrap_or(0);
        let answer = String::from_utf8_lossy(&answer[..len]);
        assert!(answer.starts_with("HTTP/1.1 503") || answer.starts_with("HTTP/1.1 400"), "{answer:?}");
        refused += u32::from(answer.contains("SlowDown"));
    }
    assert!(refused > 0, "nobody had to wait");
    let page = served.real.block_on(async move {
        let all = ashlar_objects::List { prefix: vec![], from: std::ops::Bound::Unbounded, limit: 10 };
        store.list(all).await.expect("a listing")
    });
    assert!(page.objects.is_empty(), "a part of a body is visible: {:?}", page.objects);
}
