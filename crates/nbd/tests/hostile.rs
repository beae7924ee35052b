//! What the server does with clients that die, stall, or speak nonsense: it goes on serving the others.

mod common;

use ashlar_block::{
    Capability, Device, Durability, Error, Extent, Geometry, IoContext, Kind as ErrorKind, Layer, Result,
};
use ashlar_devices::Memory;
use ashlar_env::Env;
use ashlar_nbd::Limits;
use ashlar_nbd::options::{Header, Kind, OPTION_LEN_MAX};
use ashlar_nbd::wire::{Command, Request};
use ashlar_units::{Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use common::{ERR_INVALID, ERR_TOO_BIG, Reply, Served, export};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SIZE: u64 = 64 << 20;

fn served() -> Served {
    Served::new(|_| Arc::new(Memory::new(Blocks(SIZE / 4096))))
}

/// Both workers still serve: connections go to them in turn.
fn assert_alive(served: &Served) {
    for _ in 0..2 {
        let mut client = served.client(true);
        assert_eq!(client.write(123, b"alive"), 0);
        assert_eq!(client.read(122, 7).expect("a read"), b"\0alive\0");
    }
}

fn wait_until_all_left(served: &Served) {
    let server = served.server.as_ref().expect("running");
    while server.clients() > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_client_that_dies_in_a_request_is_forgotten() {
    let served = served();
    let whole = Request { flags: 0, command: Command::Write, cookie: 1, offset: 0, len: 1 << 20 }.encode();
    for cut in [0, 1, 27, 28, 29, 5000, 28 + (1 << 20) - 1] {
        let mut client = served.client(false);
        let bytes = [&whole[..], &vec![9; 1 << 20]].concat();
        client.say(&bytes[..cut]);
    }
    // Reads whose replies nobody takes.
    let mut client = served.client(true);
    for _ in 0..50 {
        client.send(Command::Read, 0, 0, 1 << 20, &[]);
    }
    drop(client);
    wait_until_all_left(&served);
    // A write that did not arrive whole is not done in part.
    assert_eq!(served.client(false).read(0, 4096).expect("a read"), [0; 4096]);
    assert_alive(&served);
}

#[test]
fn nonsense_ends_the_connection_and_nothing_else() {
    let served = served();
    // Unknown handshake flags.
    let mut client = common::Client::greet(UnixStream::connect(&served.path).expect("it listens"), 0x8000_0003);
    assert!(client.is_closed());
    // No option where one belongs.
    let mut client = served.connect();
    client.say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(client.is_closed());
    // An option of absurd length.
    let mut client = served.connect();
    client.say(&Header { kind: Kind::Go, len: u32::MAX }.encode());
    assert_eq!(client.option_reply().expect("a reply").kind, ERR_TOO_BIG);
    assert!(client.is_closed());
    // Lengths inside an option that point outside.
    let mut client = served.connect();
    for data in [&b""[..], &[0xff; 8], &[0, 0, 0, 4, b'd', b'i', b's', b'k', 0xff, 0xff], &[0, 0, 0, 1, 0xff, 0, 0]] {
        assert_eq!(client.outcome(Kind::Go, data), ERR_INVALID, "{data:?}");
    }
    assert_eq!(client.outcome(Kind::StructuredReply, &[]), common::ACK);
    assert_eq!(client.outcome(Kind::SetMetaContext, &[&[0; 4][..], &[0xff; 400]].concat()), ERR_INVALID);
    assert_eq!(client.outcome(Kind::Other(1 << 31), &vec![0; OPTION_LEN_MAX as usize]), common::ERR_UNSUPPORTED);
    // Options without end.
    let list = Header { kind: Kind::List, len: 0 }.encode();
    let answered = |client: &mut common::Client<UnixStream>| {
        let sent = client.stream.write_all(&list);
        // The export, and the end of the list.
        sent.and_then(|()| client.option_reply()).and_then(|_| client.option_reply())
    };
    let asked = (0..5000).take_while(|_| answered(&mut client).is_ok()).count();
    assert!((100..5000).contains(&asked), "{asked} options were answered");
    drop(client);
    // No request where one belongs.
    let mut client = served.client(true);
    client.say(&[0; 28]);
    assert!(client.is_closed());
    wait_until_all_left(&served);
    assert_alive(&served);
}

#[test]
fn noise_at_every_stage_ends_in_an_answer_or_the_end() {
    let served = served();
    let word = prop_oneof![
        3 => any::<u8>().prop_map(|byte| vec![byte]),
        // Pieces that are nearly right.
        1 => (any::<u16>(), 0u16..9, 0u64..2 * SIZE, 0u32..100_000).prop_map(|(flags, command, offset, len)| {
            let mut request = Request { flags, command: Command::Other(command), cookie: 7, offset, len };
            if flags.is_multiple_of(2) {
                request.flags = 0;
            }
            request.encode().to_vec()
        }),
        1 => (0u32..12, 0u32..70).prop_map(|(kind, len)| {
            let bytes = Header { kind: Kind::Other(kind), len }.encode();
            bytes.to_vec()
        }),
    ];
    let noise = prop::collection::vec(word, 0..60).prop_map(|words| words.concat());
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) };
    let outcome = TestRunner::new(config).run(&(0..4u8, noise), |(stage, noise)| {
        let mut stream = match stage {
            0 => UnixStream::connect(&served.path).expect("it listens"),
            1 => served.connect().stream,
            _ => served.client(stage == 3).stream,
        };
        let _ = stream.write_all(&noise);
        let _ = stream.shutdown(Shutdown::Write);
        // The server answers what it can, and closes: else this waits until its time is over.
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        let mut answers = Vec::new();
        let end = stream.read_to_end(&mut answers);
        prop_assert!(!end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it hangs");
        Ok(())
    });
    outcome.expect("noise is survived");
    wait_until_all_left(&served);
    let mut client = served.client(true);
    assert!(client.read(0, 1 << 20).is_ok());
}

/// Counts how much is in service, and fails on demand.
struct Watched {
    child: Memory,
    env: Env,
    reading: AtomicU64,
    read: AtomicU64,
    fails: Option<ErrorKind>,
}

impl Watched {
    fn new(env: Env, fails: Option<ErrorKind>) -> Watched {
        let child = Memory::new(Blocks(SIZE / 4096));
        Watched { child, env, reading: AtomicU64::new(0), read: AtomicU64::new(0), fails }
    }
    fn outcome(&self) -> Result<()> {
        self.fails.map_or(Ok(()), |kind| Err(Error::new(kind, "planted")))
    }
}

impl Layer for Watched {
    fn name(&self) -> String {
        "watched".into()
    }
    fn geometry(&self) -> Geometry {
        Layer::geometry(&self.child)
    }
    fn measure(&self) -> Result<()> {
        Layer::measure(&self.child)
    }
    fn capability(&self) -> Capability {
        Layer::capability(&self.child)
    }
    async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        self.outcome()?;
        self.reading.fetch_add(1, Ordering::SeqCst);
        self.env.sleep(Duration::from_micros(200)).await;
        self.read.fetch_add(1, Ordering::SeqCst);
        Layer::read(&self.child, context, at, count).await
    }
    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        self.outcome()?;
        Layer::write(&self.child, context, at, pieces, durability).await
    }
    async fn flush(&self, context: IoContext) -> Result<()> {
        self.outcome()?;
        Layer::flush(&self.child, context).await
    }
    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.outcome()?;
        Layer::discard(&self.child, context, at, count).await
    }
    async fn provision(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        Layer::provision(&self.child, context, at, count).await
    }
    async fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        self.outcome()?;
        Layer::extent(&self.child, context, at, count).await
    }
}

#[test]
fn a_client_that_does_not_read_holds_no_more_than_its_share() {
    let limits = Limits { client_memory: Size::mib(64), memory: Size::mib(256), ..Limits::default() };
    let mut watched = None;
    let served = Served::with(limits, |real| {
        let device = Arc::new(Watched::new(real.env(), None));
        watched = Some(device.clone());
        vec![export("disk", device)]
    });
    let watched = watched.expect("made above");
    let mut client = served.client(false);
    let (requests, len) = (500u64, 1 << 20);
    // When its share is full the server leaves requests in the socket, which need not hold them all.
    let mut sender = common::Client::unchecked(client.stream.try_clone().expect("a socket"));
    let sending = std::thread::spawn(move || {
        for _ in 0..requests {
            sender.send(Command::Read, 0, 1 << 20, len, &[]);
        }
    });
    // 64 MiB hold 63 such requests with their overhead; those that left for the socket's buffer do not count.
    let (held_max, socket_max) = (64, 8);
    let mut before = u64::MAX;
    while watched.read.load(Ordering::SeqCst) != before || before == 0 {
        before = watched.read.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(100));
    }
    let begun = watched.reading.load(Ordering::SeqCst);
    assert!((1..=held_max + socket_max).contains(&begun), "{begun} requests are in service");
    // Others are served meanwhile, and this one too as soon as it reads.
    assert_alive(&served);
    for _ in 0..requests {
        assert!(matches!(client.reply().expect("a reply"), Reply::Simple { error: 0, .. }));
        assert!(client.take_vec(len as usize).expect("data") == vec![0; len as usize]);
    }
    sending.join().expect("every request was taken");
}

#[test]
fn too_many_clients_are_turned_away() {
    let limits = Limits { clients: 3, ..Limits::default() };
    let served = Served::with(limits, |_| vec![export("disk", Arc::new(Memory::new(Blocks(16))))]);
    let mut clients: Vec<_> = (0..3).map(|_| served.client(false)).collect();
    let mut extra = UnixStream::connect(&served.path).expect("it listens");
    assert_eq!(extra.read(&mut [0; 18]).expect("the end"), 0);
    assert_eq!(clients[0].write(0, b"x"), 0);
    clients.pop();
    while served.server.as_ref().expect("running").clients() > 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(served.client(false).read(0, 1).expect("a read"), b"x");
}

#[test]
fn errors_of_the_device_have_their_numbers() {
    for (kind, number) in [
        (ErrorKind::NoSpace, 28),
        (ErrorKind::Failed, 5),
        (ErrorKind::Corrupt, 5),
        (ErrorKind::Poisoned, 5),
        (ErrorKind::Unsupported, 95),
    ] {
        let served = Served::new(|real| -> Device { Arc::new(Watched::new(real.env(), Some(kind))) });
        for structured in [false, true] {
            let mut client = served.client(structured);
            assert_eq!(client.write(0, &[1; 4096]), number);
            assert_eq!(client.write(10, &[1; 100]), number);
            assert_eq!(client.read(0, 100_000), Err(number));
            assert_eq!(client.call(Command::Flush, 0, 0, 0, &[]), number);
            assert_eq!(client.call(Command::Trim, 0, 0, 8192, &[]), number);
            assert_eq!(client.call(Command::WriteZeroes, 0, 5, 8192, &[]), number);
        }
        // Stopping flushes, which fails here too; that is not what this is about.
        let mut served = served;
        let server = served.server.take().expect("running");
        assert!(served.real.block_on(server.stop()).is_err());
    }
}
