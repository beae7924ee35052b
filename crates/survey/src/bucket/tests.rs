//! Against a small server of our own, which knows lists, ranges, signatures by their presence, and troubles.

use super::*;
use crate::chunk::Chunking;
use crate::source::Kind;
use crate::{Budget, Options, survey};
use ashlar_fuzz::incompressible;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Objects of a page.
const PAGE: usize = 10;

#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Vec<u8>>,
    /// Every so many-th request is answered with 503.
    busy_every: u64,
    /// Lists never end.
    endless: bool,
    requests: AtomicU64,
    unsigned: AtomicU64,
    bytes: AtomicU64,
}

impl Server {
    /// Serves until the process ends; gives its address.
    fn start(self) -> (Arc<Server>, Access) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = Some(format!("http://{}", listener.local_addr().expect("bound")));
        let server = Arc::new(self);
        let ours = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = ours.clone();
                std::thread::spawn(move || server.serve(&stream));
            }
        });
        let credentials = Some(("key".into(), "secret".into(), None));
        (server, Access { endpoint, region: "here".into(), credentials })
    }

    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let mut from = BufReader::new(stream.try_clone().ok()?);
        loop {
            let (mut line, mut range) = (String::new(), None);
            if from.read_line(&mut line).ok()? == 0 {
                return None;
            }
            loop {
                let mut header = String::new();
                from.read_line(&mut header).ok()?;
                let header = header.trim_end().to_ascii_lowercase();
                if header.is_empty() {
                    break;
                }
                range = header.strip_prefix("range: bytes=").map(str::to_string).or(range);
            }
            let target = line.split(' ').nth(1)?;
            let (status, headers, body) = self.answer(target, range.as_deref());
            let mut reply =
                format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n", body.len()).into_bytes();
            reply.extend(body);
            let mut stream = stream;
            stream.write_all(&reply).ok()?;
        }
    }

    fn answer(&self, target: &str, range: Option<&str>) -> (&'static str, String, Vec<u8>) {
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query: BTreeMap<String, String> = query
            .split('&')
            .filter_map(|part| part.split_once('='))
            .map(|(name, value)| (unescape(name), unescape(value)))
            .collect();
        if !query.contains_key("X-Amz-Signature") {
            self.unsigned.fetch_add(1, Ordering::Relaxed);
        }
        let refuse = |status, code: &str| {
            (status, String::new(), format!("<Error><Code>{code}</Code><Message>no</Message></Error>").into_bytes())
        };
        if self.busy_every > 0 && number.is_multiple_of(self.busy_every) {
            return refuse("503 Slow Down", "SlowDown");
        }
        let path = unescape(path);
        let Some(key) = path.strip_prefix("/bucket") else { return refuse("404 Not Found", "NoSuchBucket") };
        if query.contains_key("list-type") {
            return ("200 OK", String::new(), self.list(&query).into_bytes());
        }
        let Some(object) = key.strip_prefix('/').and_then(|key| self.objects.get(key)) else {
            return refuse("404 Not Found", "NoSuchKey");
        };
        if key.contains("secret") {
            return refuse("403 Forbidden", "AccessDenied");
        }
        let Some((from, to)) = range.and_then(|range| range.split_once('-')) else {
            return ("200 OK", String::new(), object.clone());
        };
        let (from, to): (usize, usize) = (from.parse().expect("a number"), to.parse().expect("a number"));
        let part = object[from..(to + 1).min(object.len())].to_vec();
        self.bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
        let head = format!("content-range: bytes {from}-{}/{}\r\n", from + part.len() - 1, object.len());
        ("206 Partial Content", head, part)
    }

    fn list(&self, query: &BTreeMap<String, String>) -> String {
        let prefix = query.get("prefix").cloned().unwrap_or_default();
        let after = query.get("continuation-token").cloned().unwrap_or_default();
        let found: Vec<_> = self
            .objects
            .iter()
            .filter(|(key, _)| key.starts_with(&prefix) && (after.is_empty() || **key > after))
            .take(PAGE + 1)
            .collect();
        let more = found.len() > PAGE || self.endless;
        let mut text = String::from(
            "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>bucket</Name>\
             <EncodingType>url</EncodingType><MaxKeys>3</MaxKeys>",
        );
        text += &format!("<IsTruncated>{more}</IsTruncated>");
        for (key, bytes) in found.iter().take(PAGE) {
            let key: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let size = bytes.len();
            text += &format!("<Contents><Key>{key}</Key><Size>{size}</Size>");
            text += "<LastModified>2009-10-12T17:50:30.000Z</LastModified><ETag>\"x\"</ETag></Contents>";
        }
        if more {
            let last = if self.endless { "again" } else { found[PAGE - 1].0.as_str() };
            text += &format!("<NextContinuationToken>{last}</NextContinuationToken>");
        }
        text + "</ListBucketResult>"
    }
}

fn unescape(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).expect("keys of the tests are text")
}

fn options(access: Access) -> Options {
    Options { access, ..Options::everything(vec![Chunking::Fixed(4096), Chunking::Cdc(8192)]) }
}

fn objects() -> BTreeMap<String, Vec<u8>> {
    let mut objects = BTreeMap::new();
    for number in 0..40u64 {
        objects.insert(format!("logs/{}/part {number}+ü", number % 4), incompressible(number % 30, 100_000));
    }
    objects.insert("logs//odd key+%2e".into(), incompressible(99, 3 << 20));
    for number in 0..50 {
        objects.insert(format!("logs/tiny/{number}"), incompressible(200 + number, 100));
    }
    objects.insert("logs/empty".into(), Vec::new());
    objects.insert("other".into(), incompressible(100, 1000));
    objects
}

fn run(path: &str, options: &Options) -> Result<crate::Answer, crate::SurveyError> {
    survey(path.as_ref(), options, &|_| {}, &AtomicBool::new(false))
}

#[test]
fn a_bucket_is_surveyed_like_a_tree() {
    // Some requests are refused for a moment.
    let (server, access) = Server { objects: objects(), busy_every: 7, ..Server::default() }.start();
    let answer = run("s3://bucket/logs/", &options(access)).expect("an answer");
    assert_eq!(answer.kind, Kind::Bucket);
    assert_eq!((answer.sizes.files, answer.sizes.empty_files), (92, 1));
    assert_eq!(answer.logical_bytes, 40 * 100_000 + (3 << 20) + 5000);
    assert_eq!((answer.unreadable.count, answer.unreadable.first.first().map(ToString::to_string)), (0, None));
    let truth = (30.0 * 100_000.0 + f64::from(3 << 20) + 5000.0) / answer.logical_bytes as f64;
    assert!((answer.dedup[0].ratio.value.expect("a full scan") - truth).abs() < 1e-9);
    // What packing saves there is requests, and they have a price.
    let packing = answer.packing.expect("sizes are known");
    assert!(packing.before.put_requests == 92.0 && packing.after.put_requests < 92.0, "{packing:?}");
    assert!(packing.before.put_dollars > packing.after.put_dollars);
    assert_eq!(server.unsigned.load(Ordering::Relaxed), 0, "all requests are signed");
}

#[test]
fn a_sample_asks_for_its_part() {
    let objects = (0..3000u64).map(|number| (format!("{number}"), incompressible(number % 2000, 20_000))).collect();
    let (server, access) = Server { objects, ..Server::default() }.start();
    let options = Options { full: false, budget: Some(Budget::Share(0.1)), ..options(access) };
    let answer = run("s3://bucket", &options).expect("an answer");
    let read = server.bytes.load(Ordering::Relaxed) as f64 / 60e6;
    assert!((0.05..0.15).contains(&read), "{read} of the bytes were asked for");
    let (low, _, high) = answer.dedup[0].ratio.range();
    assert!(low <= 2.0 / 3.0 && 2.0 / 3.0 <= high, "{low} to {high}");
}

#[test]
fn troubles_of_buckets_are_said() {
    let (_, access) = Server { objects: objects(), ..Server::default() }.start();
    let error = run("s3://nothing/", &options(access.clone())).expect_err("no such bucket");
    assert!(error.to_string().contains("404") && error.to_string().contains("NoSuchBucket"), "{error}");
    let error = run("s3:///x", &options(access.clone())).expect_err("no name");
    assert!(error.to_string().contains("s3://BUCKET/PREFIX"), "{error}");
    let nowhere = Access { endpoint: Some("not an address".into()), ..access.clone() };
    let error = run("s3://bucket", &options(nowhere)).expect_err("no address");
    assert!(error.to_string().contains("AWS_ENDPOINT_URL"), "{error}");
    let (_, endless) = Server { objects: objects(), endless: true, ..Server::default() }.start();
    let error = run("s3://bucket", &options(endless)).expect_err("it has no end");
    assert!(error.to_string().contains("does not end"), "{error}");
    let mut guarded = BTreeMap::from([
        ("open".to_string(), incompressible(1, 9000)),
        ("secret".to_string(), incompressible(2, 5000)),
    ]);
    // A URL would lead to the open one.
    guarded.insert("up/../open".to_string(), incompressible(3, 700));
    let (_, access) = Server { objects: guarded, ..Server::default() }.start();
    let answer = run("s3://bucket", &options(access)).expect("of the rest");
    assert_eq!((answer.unreadable.count, answer.missing_bytes), (2, 5700));
    let said = answer.unreadable.first[0].to_string();
    assert!(said.contains("s3://bucket/secret") && said.contains("403"), "{said}");
}

#[test]
fn times_of_lists_are_read() {
    assert_eq!(seconds("1970-01-01T00:00:00.000Z"), Some(0));
    assert_eq!(seconds("2009-10-12T17:50:30.000Z"), Some(1_255_369_830));
    assert_eq!(seconds("2000-02-29T23:59:59Z"), Some(951_868_799));
    for wrong in ["", "today", "2009-13-01T00:00:00Z", "2009-10-12", "9-9-9T9", "2009-10-12T99999:0:0Z"] {
        assert_eq!(seconds(wrong), None, "{wrong}");
    }
}
