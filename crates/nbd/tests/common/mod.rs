//! A client that says what it is told, also what no client should, and servers to say it to.

#![allow(dead_code, reason = "every test uses a part")]

use ashlar_block::Device;
use ashlar_env::real::Real;
use ashlar_nbd::options::{self, Choice, Contexts, Header, Kind};
use ashlar_nbd::wire::{Command, Request, SIMPLE_REPLY_MAGIC};
use ashlar_nbd::{Address, ByteDevice, Export, Limits, Server};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A path for a socket that no other test uses.
pub fn socket_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("ashlar-nbd-{}-{number}.sock", std::process::id()))
}

/// A server of one device.
pub struct Served {
    pub real: Real,
    pub server: Option<Server>,
    pub path: PathBuf,
}

pub fn export(name: &str, device: Device) -> Export {
    let device = Arc::new(ByteDevice::new(device, "test"));
    Export { name: name.into(), description: "a device to test with".into(), read_only: false, device }
}

impl Served {
    pub fn new(make: impl FnOnce(&Real) -> Device) -> Served {
        Served::with(Limits::default(), |real| vec![export("disk", make(real))])
    }
    pub fn with(limits: Limits, make: impl FnOnce(&Real) -> Vec<Export>) -> Served {
        let real = Real::start(2).expect("io_uring is available");
        let path = socket_path();
        let address = Address::Unix(path.clone());
        let server = Server::start(&real, make(&real), &address, None, limits).expect("a free path");
        Served { real, server: Some(server), path }
    }
    /// A connection that has read and answered the greeting.
    pub fn connect(&self) -> Client<UnixStream> {
        let stream = UnixStream::connect(&self.path).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
        Client::greet(stream, 3)
    }
    /// A connection that has chosen the export.
    pub fn client(&self, structured: bool) -> Client<UnixStream> {
        let mut client = self.connect();
        if structured {
            client.agree_on_structured();
        }
        client.go("disk");
        client
    }
    pub fn stop(&mut self) {
        let server = self.server.take().expect("stopped once");
        self.real.block_on(server.stop()).expect("nothing fails");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let _ = self.real.block_on(server.stop());
        }
    }
}

/// A reply to an option.
#[derive(Debug, PartialEq, Eq)]
pub struct OptionReply {
    pub option: u32,
    pub kind: u32,
    pub data: Vec<u8>,
}

/// A chunk or a simple reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Simple { cookie: u64, error: u32 },
    Chunk { cookie: u64, last: bool, kind: u16, data: Vec<u8> },
}

pub struct Client<S> {
    pub stream: S,
    pub structured: bool,
    pub size: u64,
    pub flags: u16,
    next: u64,
}

pub const ACK: u32 = 1;
pub const ERR_UNSUPPORTED: u32 = 1 << 31 | 1;
pub const ERR_POLICY: u32 = 1 << 31 | 2;
pub const ERR_INVALID: u32 = 1 << 31 | 3;
pub const ERR_TLS_REQUIRED: u32 = 1 << 31 | 5;
pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;

impl<S: Read + Write> Client<S> {
    /// A client on a stream that has been greeted.
    pub fn unchecked(stream: S) -> Client<S> {
        Client { stream, structured: false, size: 0, flags: 0, next: 0 }
    }
    pub fn greet(stream: S, flags: u32) -> Client<S> {
        let mut client = Client::unchecked(stream);
        assert_eq!(client.take::<16>().expect("a greeting"), *b"NBDMAGICIHAVEOPT");
        assert_eq!(u16::from_be_bytes(client.take().expect("flags")), 3, "fixed newstyle, no zeroes");
        client.say(&flags.to_be_bytes());
        client
    }
    pub fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server takes it");
    }
    pub fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
    pub fn take_vec(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
    /// Whether the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0; 1]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    pub fn option(&mut self, kind: Kind, data: &[u8]) {
        let header = Header { kind, len: data.len() as u32 }.encode();
        self.say(&[&header[..], data].concat());
    }
    pub fn option_reply(&mut self) -> io::Result<OptionReply> {
        assert_eq!(u64::from_be_bytes(self.take()?), 0x0003_e889_0455_65a9, "magic of a reply");
        let [option, kind, len] = [(); 3].map(|()| self.take().map(u32::from_be_bytes));
        let data = self.take_vec(len? as usize)?;
        Ok(OptionReply { option: option?, kind: kind?, data })
    }
    /// Replies to an option up to the one that ends them.
    pub fn ask(&mut self, kind: Kind, data: &[u8]) -> Vec<OptionReply> {
        self.option(kind, data);
        let mut replies = Vec::new();
        loop {
            let reply = self.option_reply().expect("a reply");
            assert_eq!(reply.option, kind.number());
            let last = reply.kind == ACK || reply.kind >> 31 == 1;
            replies.push(reply);
            if last {
                return replies;
            }
        }
    }
    /// Kind of the last reply to an option.
    pub fn outcome(&mut self, kind: Kind, data: &[u8]) -> u32 {
        self.ask(kind, data).last().expect("at least one").kind
    }
    pub fn agree_on_structured(&mut self) {
        assert_eq!(self.outcome(Kind::StructuredReply, &[]), ACK);
        let contexts = Contexts { name: "disk".into(), queries: vec![options::BASE_ALLOCATION.into()] };
        assert_eq!(self.ask(Kind::SetMetaContext, &contexts.encode()).len(), 2);
        self.structured = true;
    }
    pub fn go(&mut self, name: &str) {
        let replies = self.ask(Kind::Go, &Choice { name: name.into(), wanted: vec![] }.encode());
        assert_eq!(replies.last().expect("at least one").kind, ACK);
        let export = replies.iter().find(|reply| reply.data.starts_with(&[0, 0])).expect("size and flags");
        self.size = u64::from_be_bytes(export.data[2..10].try_into().expect("eight"));
        self.flags = u16::from_be_bytes(export.data[10..12].try_into().expect("two"));
    }

    /// Sends a request, and gives its cookie.
    pub fn send(&mut self, command: Command, flags: u16, offset: u64, len: u32, data: &[u8]) -> u64 {
        self.next += 1;
        let request = Request { flags, command, cookie: self.next << 32 | 0xfeed, offset, len };
        self.say(&[&request.encode()[..], data].concat());
        request.cookie
    }
    /// Reads a reply; `data` says how long the data of a simple reply to a read are.
    pub fn reply(&mut self) -> io::Result<Reply> {
        match u32::from_be_bytes(self.take()?) {
            SIMPLE_REPLY_MAGIC => {
                let error = u32::from_be_bytes(self.take()?);
                Ok(Reply::Simple { cookie: u64::from_be_bytes(self.take()?), error })
            }
            0x668e_33ef => {
                let flags = u16::from_be_bytes(self.take()?);
                let kind = u16::from_be_bytes(self.take()?);
                let cookie = u64::from_be_bytes(self.take()?);
                let len = u32::from_be_bytes(self.take()?);
                let data = self.take_vec(len as usize)?;
                Ok(Reply::Chunk { cookie, last: flags & 1 != 0, kind, data })
            }
            other => panic!("{other:#x} begins no reply"),
        }
    }

    /// A request without data in its reply: 0 or an error number.
    pub fn call(&mut self, command: Command, flags: u16, offset: u64, len: u32, data: &[u8]) -> u32 {
        let sent = self.send(command, flags, offset, len, data);
        match self.reply().expect("a reply") {
            Reply::Simple { cookie, error } => {
                assert_eq!(cookie, sent);
                error
            }
            Reply::Chunk { cookie, last, kind, data } => {
                assert_eq!((cookie, last, kind), (sent, true, 1 << 15 | 1), "an error");
                let story = u16::from_be_bytes([data[4], data[5]]) as usize;
                assert_eq!(data.len(), 6 + story);
                u32::from_be_bytes(data[..4].try_into().expect("four"))
            }
        }
    }
    pub fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.call(Command::Write, 0, offset, data.len() as u32, data)
    }
    /// Reads, and gives the chunks' kinds with the data.
    pub fn read_chunks(&mut self, flags: u16, offset: u64, len: u32) -> Result<(Vec<u16>, Vec<u8>), u32> {
        let sent = self.send(Command::Read, flags, offset, len, &[]);
        self.found(sent, offset, len)
    }
    fn found(&mut self, sent: u64, offset: u64, len: u32) -> Result<(Vec<u16>, Vec<u8>), u32> {
        let mut parts: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut kinds = Vec::new();
        loop {
            match self.reply().expect("a reply") {
                Reply::Simple { cookie, error } => {
                    assert_eq!((cookie, self.structured), (sent, false));
                    let data = if error == 0 { self.take_vec(len as usize).expect("data") } else { Vec::new() };
                    return if error == 0 { Ok((kinds, data)) } else { Err(error) };
                }
                Reply::Chunk { cookie, last, kind, data } => {
                    assert_eq!(cookie, sent);
                    kinds.push(kind);
                    let number = |range: std::ops::Range<usize>| {
                        data[range].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
                    };
                    match kind {
                        1 => parts.insert(number(0..8), data[8..].to_vec()),
                        2 => parts.insert(number(0..8), vec![0; number(8..12) as usize]),
                        _ => return Err(number(0..4) as u32),
                    };
                    if last {
                        break;
                    }
                }
            }
        }
        let mut data = Vec::new();
        for (at, part) in parts {
            assert_eq!(at, offset + data.len() as u64, "no part is missing");
            data.extend(part);
        }
        assert_eq!(data.len(), len as usize);
        Ok((kinds, data))
    }
    pub fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        self.read_chunks(0, offset, len).map(|(_, data)| data)
    }
    /// Extents as (length, state).
    pub fn block_status(&mut self, flags: u16, offset: u64, len: u32) -> Vec<(u32, u32)> {
        let sent = self.send(Command::BlockStatus, flags, offset, len, &[]);
        let Reply::Chunk { cookie, last: true, kind: 5, data } = self.reply().expect("a reply") else {
            panic!("an answer to BLOCK_STATUS in one chunk")
        };
        assert_eq!((cookie, &data[..4]), (sent, &[0, 0, 0, 1][..]));
        let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four"));
        data[4..].chunks(8).map(|extent| (word(&extent[..4]), word(&extent[4..]))).collect()
    }
}
