//! A plain HTTP client that costs little: URLs are signed before the clock starts, and each connection asks one thing after
//! the other.

use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Key and secret of every server.
pub const KEY: &str = "ASHLARBENCH";
pub const SECRET: &str = "ashlar-bench-secret";
const BUCKET: &str = "bench";
/// For how long URLs hold.
const VALID: Duration = Duration::from_secs(3600);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Room for the head of an answer.
const HEAD_MAX: usize = 64 << 10;

/// What is asked of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Put,
    Get,
}

impl Asked {
    pub fn name(self) -> &'static str {
        match self {
            Asked::Put => "put",
            Asked::Get => "get",
        }
    }
}

/// Requests, all alike but for their keys.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub asked: Asked,
    /// Length of each object, in bytes.
    pub size: usize,
    /// How many objects.
    pub count: usize,
    /// Connections at once.
    pub connections: usize,
}

/// Where requests go, and who signs them.
pub struct Client {
    address: SocketAddr,
    bucket: Bucket,
    signer: Credentials,
}

impl Client {
    pub fn new(address: SocketAddr) -> Result<Client, String> {
        let url = format!("http://{address}").parse().map_err(|error| format!("{address}: {error}"))?;
        let bucket = Bucket::new(url, UrlStyle::Path, BUCKET, "us-east-1").map_err(|error| error.to_string())?;
        Ok(Client { address, bucket, signer: Credentials::new(KEY, SECRET) })
    }

    /// Whether the server made the bucket: it does once it serves.
    pub fn make_bucket(&self) -> bool {
        let url = self.bucket.create_bucket(&self.signer).sign(VALID);
        let head = self.head("PUT", url.path(), url.query(), 0);
        let answer = Connection::open(self.address).and_then(|mut server| server.ask(&head, b"", &mut Vec::new()));
        answer == Ok(200)
    }

    fn head(&self, method: &str, path: &str, query: Option<&str>, length: usize) -> Vec<u8> {
        let length = if method == "PUT" { format!("Content-Length: {length}\r\n") } else { String::new() };
        let query = query.unwrap_or_default();
        format!("{method} {path}?{query} HTTP/1.1\r\nHost: {}\r\n{length}\r\n", self.address).into_bytes()
    }

    /// Carries out a load; requests per second. What comes back is compared with what was put.
    pub fn run(&self, load: &Load) -> Result<f64, String> {
        let heads: Vec<Vec<u8>> = (0..load.count)
            .map(|number| {
                let key = format!("{}/{number:07}", load.size);
                let url = match load.asked {
                    Asked::Put => self.bucket.put_object(Some(&self.signer), &key).sign(VALID),
                    Asked::Get => self.bucket.get_object(Some(&self.signer), &key).sign(VALID),
                };
                let method = if load.asked == Asked::Put { "PUT" } else { "GET" };
                self.head(method, url.path(), url.query(), load.size)
            })
            .collect();
        let (next, ready) = (AtomicUsize::new(0), Barrier::new(load.connections + 1));
        let work = || -> Result<(), String> {
            let server = Connection::open(self.address);
            let (mut object, mut got) = (Object::new(load.size), Vec::with_capacity(load.size));
            ready.wait();
            let mut server = server?;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(head) = heads.get(number) else { return Ok(()) };
                crate::bench::check_interrupt()?;
                object.stamp(number);
                let body = if load.asked == Asked::Put { &object.0[..] } else { b"" };
                let status = server.ask(head, body, &mut got)?;
                if status != 200 {
                    let said = String::from_utf8_lossy(&got);
                    return Err(format!("{} of object {number}: {status}: {said}", load.asked.name()));
                }
                if load.asked == Asked::Get && got != object.0 {
                    return Err(format!("object {number} came back with other bytes"));
                }
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..load.connections).map(|_| scope.spawn(work)).collect();
            ready.wait();
            let began = Instant::now();
            for worker in workers {
                worker.join().map_err(|_| "a client panicked")??;
            }
            Ok(load.count as f64 / began.elapsed().as_secs_f64())
        })
    }
}

/// The bytes of an object: they do not compress, and differ from object to object in their first eight.
struct Object(Vec<u8>);

impl Object {
    fn new(size: usize) -> Object {
        let mut word = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (word >> 32) as u8
        };
        Object((0..size).map(|_| next()).collect())
    }
    fn stamp(&mut self, number: usize) {
        let bytes = (number as u64).to_le_bytes();
        self.0.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    }
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// One that stays open, unless the server closes it after an answer.
struct Connection {
    address: SocketAddr,
    stream: TcpStream,
    closes: bool,
    head: Vec<u8>,
}

impl Connection {
    fn open(address: SocketAddr) -> Result<Connection, String> {
        let stream = connect(address).map_err(|error| format!("{address}: {error}"))?;
        Ok(Connection { address, stream, closes: false, head: vec![0; HEAD_MAX] })
    }

    /// Sends a request; the status of the answer, whose body replaces what is in `got`.
    fn ask(&mut self, head: &[u8], body: &[u8], got: &mut Vec<u8>) -> Result<u16, String> {
        self.send(head, body).and_then(|()| self.receive(got)).map_err(|error| format!("no answer: {error}"))
    }

    fn send(&mut self, head: &[u8], body: &[u8]) -> std::io::Result<()> {
        if self.closes {
            (self.stream, self.closes) = (connect(self.address)?, false);
        }
        let mut slices = [IoSlice::new(head), IoSlice::new(body)];
        let mut slices = &mut slices[..];
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let sent = self.stream.write_vectored(slices)?;
            IoSlice::advance_slices(&mut slices, sent);
        }
        Ok(())
    }

    fn receive(&mut self, got: &mut Vec<u8>) -> std::io::Result<u16> {
        let wrong = |what: &str| std::io::Error::other(format!("the answer {what}"));
        let mut filled = 0;
        let end = loop {
            let room = self.head.get_mut(filled..).filter(|room| !room.is_empty());
            let len = self.stream.read(room.ok_or_else(|| wrong("has too long a head"))?)?;
            if len == 0 {
                return Err(wrong("breaks off"));
            }
            filled += len;
            let seen = &self.head[..filled];
            if let Some(at) = seen.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
        };
        let text = std::str::from_utf8(&self.head[..end]).map_err(|_| wrong("has a strange head"))?;
        let mut lines = text.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let status = status.ok_or_else(|| wrong("has no status"))?;
        let mut length = None;
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse::<usize>().ok();
            } else if name.eq_ignore_ascii_case("connection") {
                self.closes = value.trim().eq_ignore_ascii_case("close");
            }
        }
        // Answers in chunks would be of no use here: those that count say how long they are.
        let length = length.ok_or_else(|| wrong("does not say how long it is"))?;
        got.clear();
        got.extend_from_slice(&self.head[end..filled]);
        let begun = got.len().min(length);
        got.resize(length, 0);
        self.stream.read_exact(&mut got[begun..])?;
        Ok(status)
    }
}
