//! Clients that mean harm, or die.

mod common;

use ashlar_objects::{List, Name, Put, Store};
use ashlar_s3::{Credentials, Limits, Options};
use ashlar_units::Bytes as Size;
use common::{KEY, SECRET, Served, noise};
use rusty_s3::{Bucket, Credentials as Signer, S3Action, UrlStyle};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Bound;
use std::time::{Duration, Instant};

/// For how long something is waited for that must happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// A path that a key's owner signed.
fn signed(served: &Served, method: &str, key: &str) -> String {
    let bucket = Bucket::new(served.endpoint().parse().expect("a URL"), UrlStyle::Path, "photos", "us-east-1");
    let (bucket, signer) = (bucket.expect("a bucket"), Signer::new(KEY, SECRET));
    let day = Duration::from_secs(3600);
    let url = match method {
        "PUT" => bucket.put_object(Some(&signer), key).sign(day),
        _ => bucket.get_object(Some(&signer), key).sign(day),
    };
    format!("{}?{}", url.path(), url.query().unwrap_or_default())
}

fn head(served: &Served, method: &str, key: &str, more: &str) -> String {
    format!("{method} {} HTTP/1.1\r\nHost: {}\r\n{more}\r\n", signed(served, method, key), served.address())
}

/// All names that a store holds, with those of the door.
fn names(served: &Served, store: &Store) -> Vec<Vec<u8>> {
    let store = store.clone();
    let page = served.real.block_on(async move {
        store.list(List { prefix: vec![], from: Bound::Unbounded, limit: 1000 }).await.expect("a listing")
    });
    page.objects.iter().map(|stat| stat.name.as_bytes().to_vec()).collect()
}

/// Waits until a store holds these names.
fn await_names(served: &Served, store: &Store, expected: &[&[u8]]) {
    let began = Instant::now();
    while names(served, store) != expected {
        assert!(began.elapsed() < PATIENCE, "there is still {:?}", names(served, store));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_client_that_stops_in_mid_body_leaves_nothing() {
    let served = Served::new();
    let store = served.bucket("photos");
    for sent in [0, 1000, 9_000_000, 17_000_000] {
        let mut stream = TcpStream::connect(served.address()).expect("the server listens");
        let head = head(&served, "PUT", "half", "Content-Length: 20000000\r\n");
        stream.write_all(head.as_bytes()).expect("it reads");
        stream.write_all(&noise(sent)).expect("it reads");
        if sent > 8 << 20 {
            // A piece has arrived in the store before the client dies, where no key has such a name.
            let began = Instant::now();
            while names(&served, &store).is_empty() {
                assert!(began.elapsed() < PATIENCE, "no piece is written");
            }
            assert!(names(&served, &store).iter().all(|name| name.starts_with(&[0])));
        }
        stream.shutdown(Shutdown::Both).expect("a socket");
        drop(stream);
        await_names(&served, &store, &[]);
    }
}

#[test]
fn what_a_crash_left_is_collected_and_uploads_are_kept() {
    let served = Served::new();
    let store = served.bucket("photos");
    let id = "0123456789abcdef0123456789abcdef";
    let record = format!("\0ukey\0{id}");
    let living = format!("\0p{id}/00001");
    let dead = format!("\0p{}/00001", "f".repeat(32));
    for name in ["\0s0123456789abcdef/0000000000000000/00000001", &record, &living, &dead, "key"] {
        let (store, name) = (store.clone(), Name::new(name.as_bytes().to_vec()).expect("a name"));
        let attributes = [("upload-key".to_string(), bytes::Bytes::from_static(b"key"))].into();
        let put = Put { attributes, ..Put::default() };
        served.real.block_on(async move { store.put(&name, vec![], put).await }).expect("room");
    }
    let answer = served.raw(head(&served, "GET", "key", "Connection: close\r\n").as_bytes());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    await_names(&served, &store, &[living.as_bytes(), record.as_bytes(), b"key"]);
}

#[test]
fn heads_that_are_no_requests() {
    let served = Served::new();
    served.bucket("photos");
    let long = "x".repeat(200_000);
    let many: String = (0..200).map(|number| format!("X-Header-{number}: 1\r\n")).collect();
    let get = |more: &str| head(&served, "GET", "key", &format!("Connection: close\r\n{more}")).into_bytes();
    for (request, status) in [
        (get(&format!("X-Long: {long}\r\n")), "431"),
        (get(&many), "431"),
        (format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes(), "4"),
        (b"GET\r\n\r\n".to_vec(), "400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(20), "400"),
        (b"PUT /photos/a HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n".to_vec(), "400"),
        (b"PUT /photos/a HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n".to_vec(), "400"),
        (b"GET /photos/\x00 HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), "400"),
        (b"GET /photos/%00 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec(), "400"),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec(), "400"),
        (b"GET /photos/a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec(), "403"),
        (
            b"POST /photos?delete HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\r\n<a>".to_vec(),
            "403",
        ),
        (b"DELETE /photos HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec(), "403"),
    ] {
        let answer = served.raw(&request);
        let shown = String::from_utf8_lossy(&request[..request.len().min(80)]).into_owned();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{shown:?}: {answer}");
    }
    let answer = served.raw(&get(""));
    assert!(answer.contains("NoSuchKey"), "the server still answers: {answer}");
}

#[test]
fn signatures_that_do_not_hold() {
    let served = Served::new();
    served.bucket("photos");
    let ask = |path: &str| {
        served.raw(format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", served.address()).as_bytes())
    };
    let good = signed(&served, "GET", "key");
    assert!(ask(&good).contains("NoSuchKey"));
    let other = good.replace("/key?", "/other?");
    assert!(ask(&other).contains("SignatureDoesNotMatch"), "of another key");
    let longer = good.replace("Expires=3600", "Expires=3601");
    assert!(ask(&longer).contains("SignatureDoesNotMatch"), "a longer life");
    let stranger = good.replace(KEY, "AKIAIOSFODNN7STRANGE");
    assert!(ask(&stranger).contains("InvalidAccessKeyId"), "{}", ask(&stranger));
    let old = of_another_time(&good, "20200101T000000Z");
    let answer = ask(&old);
    assert!(answer.starts_with("HTTP/1.1 403") && !answer.contains("NoSuchKey"), "{answer}");
    let answer = served.raw(
        format!(
            "GET /photos/key HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nx-amz-date: 20200101T000000Z\r\n\
             x-amz-content-sha256: UNSIGNED-PAYLOAD\r\nAuthorization: AWS4-HMAC-SHA256 \
             Credential={KEY}/20200101/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature={}\r\n\r\n",
            served.address(),
            "0".repeat(64),
        )
        .as_bytes(),
    );
    assert!(answer.contains("RequestTimeTooSkewed"), "{answer}");
    for wrong in ["AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 Credential=,SignedHeaders=,Signature=", "Basic abc", "AWS a:b"]
    {
        let request =
            format!("GET /photos/key HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: {wrong}\r\n\r\n");
        let answer = served.raw(request.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 40"), "{wrong}: {answer}");
    }
}

/// A presigned path of another time: both the date and the day of the credential.
fn of_another_time(path: &str, date: &str) -> String {
    let at = path.find("X-Amz-Date=").expect("a date") + "X-Amz-Date=".len();
    let old = &path[at..at + date.len()];
    path.replace(old, date).replace(&old[..8], &date[..8])
}

/// Reads an answer's status line.
fn status(stream: &mut TcpStream) -> String {
    let mut answer = [0; 2000];
    let len = stream.read(&mut answer).unwrap_or(0);
    String::from_utf8_lossy(&answer[..len]).into_owned()
}

#[test]
fn slow_clients_do_not_keep_memory_for_ever() {
    let limits = Limits {
        memory: Size::mib(4),
        patience: Duration::from_millis(600),
        wait: Duration::from_secs(10),
        ..Limits::default()
    };
    let served = Served::with_limits(limits);
    let store = served.bucket("photos");
    let large = bytes::Bytes::from(noise(64 << 20));
    let (into, name) = (store.clone(), Name::new(&b"large"[..]).expect("a name"));
    served.real.block_on(async move { into.put(&name, vec![large], Put::default()).await }).expect("room");
    // More than there is memory for: readers that do not read, writers that do not write.
    let mut clients = Vec::new();
    for number in 0..40 {
        let mut stream = TcpStream::connect(served.address()).expect("the server listens");
        let request = match number % 2 {
            0 => head(&served, "GET", "large", ""),
            _ => head(&served, "PUT", "slow", "Content-Length: 20000000\r\n"),
        };
        stream.write_all(request.as_bytes()).expect("it reads");
        clients.push(stream);
    }
    // Who comes with an honest request gets in when they have been put out.
    let answer = served.raw(
        format!("{}hello", head(&served, "PUT", "small", "Connection: close\r\nContent-Length: 5\r\n")).as_bytes(),
    );
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for (number, client) in clients.iter_mut().enumerate().filter(|(number, _)| number % 2 == 1) {
        client.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let answer = status(client);
        assert!(answer.contains("RequestTimeout") || answer.contains("SlowDown"), "client {number}: {answer:?}");
    }
    drop(clients);
    await_names(&served, &store, &[b"large", b"small"]);
}

#[test]
fn without_credentials_requests_are_unsigned_and_local() {
    let served = Served::with(Options::default());
    let store = served.bucket("photos");
    let put = format!(
        "PUT /photos/a HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        served.address()
    );
    assert!(served.raw(put.as_bytes()).starts_with("HTTP/1.1 200"));
    await_names(&served, &store, &[b"a"]);
    let signed = head(&served, "GET", "a", "Connection: close\r\n");
    let answer = served.raw(signed.as_bytes());
    assert!(answer.contains("InvalidAccessKeyId") && answer.contains("unsigned"), "{answer}");
    let everywhere = "0.0.0.0:0".parse().expect("an address");
    let refused =
        ashlar_s3::Server::start(&served.real.env(), served.buckets.clone(), everywhere, 1, Options::default());
    let error = refused.err().expect("nobody outside may come in without a key");
    assert!(error.contains("credentials"), "{error}");
    let with_key = Options { credentials: Credentials::one(KEY, SECRET), ..Options::default() };
    ashlar_s3::Server::start(&served.real.env(), served.buckets.clone(), everywhere, 1, with_key)
        .expect("with a key")
        .stop();
}
