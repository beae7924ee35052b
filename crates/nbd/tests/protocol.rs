//! What the server answers to clients that keep to the protocol.

mod common;

use ashlar_block::{Device, IoContext};
use ashlar_devices::{Memory, PowerCut, Tearing};
use ashlar_nbd::options::{Choice, Contexts, Kind, info};
use ashlar_nbd::wire::{Command, flag};
use ashlar_nbd::{Address, Limits, Server};
use ashlar_units::{Blocks, Lba};
use common::{ACK, ERR_INVALID, ERR_POLICY, ERR_UNKNOWN, ERR_UNSUPPORTED, Reply, Served, export};
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 1 << 20;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EPERM: u32 = 1;
const ENOTSUP: u32 = 95;

fn memory(_: &ashlar_env::real::Real) -> Device {
    Arc::new(Memory::new(Blocks(SIZE / 4096)))
}

#[test]
fn options_are_answered_one_by_one() {
    let served = Served::new(memory);
    let mut client = served.connect();
    assert_eq!(client.outcome(Kind::Other(77), b"what"), ERR_UNSUPPORTED);
    assert_eq!(client.outcome(Kind::StartTls, &[]), ERR_POLICY);
    let list = client.ask(Kind::List, &[]);
    assert_eq!(list.len(), 2);
    assert_eq!(list[0].data, b"\0\0\0\x04diska device to test with");
    assert_eq!(client.outcome(Kind::List, b"x"), ERR_INVALID);
    let choose = |name: &str, wanted| Choice { name: name.into(), wanted }.encode();
    assert_eq!(client.outcome(Kind::Info, &choose("tape", vec![])), ERR_UNKNOWN);
    assert_eq!(client.outcome(Kind::Info, b"\0\0\0\x09short"), ERR_INVALID);
    let answers = client.ask(Kind::Info, &choose("disk", vec![info::NAME, info::DESCRIPTION, 99]));
    let kinds: Vec<u16> =
        answers.iter().filter(|answer| answer.kind == 3).map(|answer| u16::from(answer.data[1])).collect();
    assert_eq!(kinds, [info::EXPORT, info::BLOCK_SIZE, info::NAME, info::DESCRIPTION]);
    // Contexts need structured replies first.
    let contexts = Contexts { name: "disk".into(), queries: vec!["base:allocation".into(), "qemu:x".into()] };
    assert_eq!(client.outcome(Kind::SetMetaContext, &contexts.encode()), ERR_INVALID);
    assert_eq!(client.outcome(Kind::StructuredReply, b"x"), ERR_INVALID);
    assert_eq!(client.outcome(Kind::StructuredReply, &[]), ACK);
    assert_eq!(client.ask(Kind::SetMetaContext, &contexts.encode()).len(), 2);
    let listed = client.ask(Kind::ListMetaContext, &Contexts { queries: vec![], ..contexts }.encode());
    assert_eq!(listed[0].data, b"\0\0\0\0base:allocation");
    client.structured = true;
    client.go("");
    assert_eq!(client.size, SIZE);
    assert_eq!(client.block_status(0, 0, 4096), [(4096, 3)]);

    let mut leaving = served.connect();
    assert_eq!(leaving.outcome(Kind::Abort, &[]), ACK);
    assert!(leaving.is_closed());
}

#[test]
fn the_old_way_to_choose_works_with_and_without_padding() {
    let served = Served::new(memory);
    for (flags, padding) in [(1, 124), (3, 0)] {
        let stream = std::os::unix::net::UnixStream::connect(&served.path).expect("the server listens");
        let mut client = common::Client::greet(stream, flags);
        client.option(Kind::ExportName, b"disk");
        assert_eq!(u64::from_be_bytes(client.take().expect("a size")), SIZE);
        assert_eq!(u16::from_be_bytes(client.take().expect("flags")) & 1, 1);
        assert_eq!(client.take_vec(padding).expect("padding"), vec![0; padding]);
        assert_eq!(client.write(5, b"hello"), 0);
        assert_eq!(client.read(4, 7).expect("a read"), b"\0hello\0");
    }
    let mut client = served.connect();
    client.option(Kind::ExportName, b"tape");
    assert!(client.is_closed());
}

/// Random operations of any offset and length against an array of bytes.
fn follow_a_model(structured: bool, seed: u64) {
    println!("seed {seed}");
    let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
    let served = Served::new(memory);
    let mut client = served.client(structured);
    let mut model = vec![0u8; SIZE as usize];
    for step in 0..400u32 {
        let offset = random.random_range(0..SIZE);
        let longest = if random.random_range(0..3) == 0 { 200_000 } else { 5000 };
        let len = random.random_range(1..longest).min(SIZE - offset);
        let mut range = offset as usize..(offset + len) as usize;
        match random.random_range(0..8) {
            0..3 => {
                let data: Vec<u8> = (0..len).map(|_| random.random()).collect();
                let fua = (step % 2) as u16 * flag::FUA;
                assert_eq!(client.call(Command::Write, fua, offset, len as u32, &data), 0);
                model[range].copy_from_slice(&data);
            }
            3..5 => {
                let flags = if structured { (step % 2) as u16 * flag::DF } else { 0 };
                let (_, data) = client.read_chunks(flags, offset, len as u32).expect("a read in range");
                assert!(data == model[range], "step {step}: {len} bytes at {offset}");
            }
            5 => {
                let flags = [0, flag::NO_HOLE, flag::FAST_ZERO, flag::FUA][random.random_range(0..4)];
                assert_eq!(client.call(Command::WriteZeroes, flags, offset, len as u32, &[]), 0);
                model[range].fill(0);
            }
            6 => {
                assert_eq!(client.call(Command::Trim, 0, offset, len as u32, &[]), 0);
                // Whole blocks go, and read as zeros here.
                range = range.start.next_multiple_of(4096)..range.end / 4096 * 4096;
                if range.start < range.end {
                    model[range].fill(0);
                }
            }
            _ => assert_eq!(client.call(Command::Flush, 0, 0, 0, &[]), 0),
        }
    }
    assert!(client.read(0, SIZE as u32).expect("all of it") == model);
    if structured {
        let extents = client.block_status(0, 0, SIZE as u32);
        assert_eq!(extents.iter().map(|(len, _)| u64::from(*len)).sum::<u64>(), SIZE);
        let mut at = 0;
        for (len, state) in extents {
            let part = &model[at..at + len as usize];
            assert!(state == 0 || part.iter().all(|byte| *byte == 0), "a hole of {len} at {at}");
            at += len as usize;
        }
    }
}

#[test]
fn bytes_are_as_written_with_simple_replies() {
    follow_a_model(false, 1);
}

#[test]
fn bytes_are_as_written_with_structured_replies() {
    follow_a_model(true, 2);
}

#[test]
fn holes_are_told() {
    let served = Served::new(memory);
    let mut client = served.client(true);
    assert_eq!(client.write(65536, &[7; 8192]), 0);
    assert_eq!(client.block_status(0, 0, 1 << 20), [(65536, 3), (8192, 0), (SIZE as u32 - 73728, 3)]);
    assert_eq!(client.block_status(flag::REQ_ONE, 65000, 20000), [(536, 3)]);
    let (kinds, data) = client.read_chunks(0, 1000, 200_000).expect("a read in range");
    assert_eq!(kinds, [2, 1, 2]);
    assert!(data[64536..][..8192].iter().all(|byte| *byte == 7));
    // Short ones are zeros.
    assert_eq!(client.read_chunks(0, 65536 - 20_000, 40_000).expect("a read in range").0, [1]);
    // In one piece if the client wants it so.
    assert_eq!(client.read_chunks(flag::DF, 1000, 200_000).expect("a read in range").0, [1]);
    // A client that did not agree on the context may not ask.
    let mut plain = served.client(false);
    assert_eq!(plain.call(Command::BlockStatus, 0, 0, 4096, &[]), EINVAL);
}

#[test]
fn refused_requests_leave_the_connection_usable() {
    let served = Served::with(Limits::default(), |_| {
        let device: Device = Arc::new(Memory::new(Blocks(SIZE / 4096)));
        let mut locked = export("locked", device.clone());
        locked.read_only = true;
        vec![export("disk", device), locked]
    });
    for structured in [false, true] {
        let mut client = served.client(structured);
        let end = SIZE - 10;
        assert_eq!(client.read(end, 11), Err(EINVAL));
        assert_eq!(client.read(u64::MAX - 1, 4096), Err(EINVAL));
        assert_eq!(client.write(end, &[1; 11]), ENOSPC);
        assert_eq!(client.write(u64::MAX, &[1; 5000]), ENOSPC);
        assert_eq!(client.call(Command::WriteZeroes, 0, end, 11, &[]), ENOSPC);
        assert_eq!(client.call(Command::Trim, 0, 0, u32::MAX, &[]), EINVAL);
        assert_eq!(client.read(0, 0), Err(EINVAL));
        assert_eq!(client.read(0, u32::MAX), Err(EINVAL));
        assert_eq!(client.call(Command::Other(5), 0, 0, 512, &[]), EINVAL);
        assert_eq!(client.call(Command::Other(9999), 0xffff, 0, u32::MAX, &[]), EINVAL);
        assert_eq!(client.call(Command::Write, flag::NO_HOLE, 0, 3, b"abc"), EINVAL);
        assert_eq!(client.call(Command::WriteZeroes, flag::FAST_ZERO | flag::NO_HOLE, 0, 4096, &[]), ENOTSUP);
        // Too large a write is read to its end and refused.
        assert_eq!(client.write(0, &vec![1; (32 << 20) + 1]), EINVAL);
        assert_eq!(client.read(0, 64).expect("a read in range"), [0; 64]);
    }
    let mut client = served.connect();
    client.go("locked");
    assert_eq!(client.write(0, b"abc"), EPERM);
    assert_eq!(client.call(Command::WriteZeroes, 0, 0, 4096, &[]), EPERM);
    assert_eq!(client.call(Command::Trim, 0, 0, 4096, &[]), EPERM);
    assert_eq!(client.read(0, 3).expect("a read in range"), [0; 3]);
}

#[test]
fn requests_complete_out_of_order_and_each_once() {
    let served =
        Served::new(|real| Arc::new(Memory::new(Blocks(SIZE / 4096)).with_delay(real.env(), Duration::from_millis(3))));
    let mut client = served.client(false);
    let count = 200u64;
    for number in 0..count {
        client.send(Command::Write, 0, number * 4096, 4096, &vec![number as u8; 4096]);
    }
    let mut order = Vec::new();
    for _ in 0..count {
        let Reply::Simple { cookie, error: 0 } = client.reply().expect("a reply") else { panic!("a success") };
        order.push(cookie);
    }
    let mut sorted = order.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len() as u64, count);
    assert_ne!(order, sorted, "waiting requests do not hold up others");
    let mut sent: BTreeMap<u64, u64> =
        (0..count).map(|number| (client.send(Command::Read, 0, number * 4096, 4096, &[]), number)).collect();
    while !sent.is_empty() {
        let Reply::Simple { cookie, error: 0 } = client.reply().expect("a reply") else { panic!("a success") };
        let number = sent.remove(&cookie).expect("asked, and not yet answered");
        assert_eq!(client.take_vec(4096).expect("data"), vec![number as u8; 4096]);
    }
}

#[test]
fn neighbours_within_a_block_do_not_harm_each_other() {
    let served =
        Served::new(|real| Arc::new(Memory::new(Blocks(4)).with_delay(real.env(), Duration::from_micros(300))));
    // Each of eight clients owns every eighth sector and writes it again and again, many at a time.
    let (sector, sectors, clients) = (512u64, 32u64, 8u64);
    std::thread::scope(|scope| {
        for owner in 0..clients {
            let mut client = served.client(false);
            scope.spawn(move || {
                for round in 0..10u8 {
                    let mine = (owner..sectors).step_by(clients as usize);
                    let count = mine.clone().count();
                    for at in mine {
                        client.send(Command::Write, 0, at * sector, sector as u32, &[round ^ at as u8; 512]);
                    }
                    for _ in 0..count {
                        assert!(matches!(client.reply().expect("a reply"), Reply::Simple { error: 0, .. }));
                    }
                }
            });
        }
    });
    let mut client = served.client(false);
    for at in 0..sectors {
        let data = client.read(at * sector, sector as u32).expect("a read in range");
        assert_eq!(data, [9 ^ at as u8; 512], "sector {at}");
    }
}

#[test]
fn a_flush_on_one_connection_covers_writes_answered_on_another() {
    let real = ashlar_env::real::Real::start(2).expect("io_uring is available");
    let device = Arc::new(PowerCut::new(Blocks(16), real.env(), Duration::from_micros(50)));
    let path = common::socket_path();
    let exports = vec![export("disk", device.clone())];
    let server = Server::start(&real, exports, &Address::Unix(path.clone()), None, Limits::default());
    let served = Served { real, server: Some(server.expect("a free path")), path };
    let (mut writer, mut flusher) = (served.client(false), served.client(true));
    assert_eq!(writer.write(0, &[1; 4096]), 0);
    assert_eq!(flusher.call(Command::Flush, 0, 0, 0, &[]), 0);
    assert_eq!(writer.write(4096, &[2; 4096]), 0);
    assert_eq!(writer.call(Command::Write, flag::FUA, 8192, 4096, &[3; 4096]), 0);
    let env = served.real.env();
    // What the cut keeps of the rest is by chance.
    for _ in 0..20 {
        let survivor = device.after_cut(Tearing::ALL, env.clone());
        let context = IoContext::foreground("test");
        let (first, forced) = served.real.block_on(async move {
            let block = |at| ashlar_block::BlockDevice::read(&survivor, context, Lba(at), Blocks(1));
            (block(0).await.expect("a read"), block(2).await.expect("a read"))
        });
        assert_eq!((first[0], forced[0]), (1, 3));
    }
}

#[test]
fn stopping_answers_what_is_in_service() {
    let mut served = Served::new(|real| {
        Arc::new(Memory::new(Blocks(SIZE / 4096)).with_delay(real.env(), Duration::from_millis(20)))
    });
    let mut client = served.client(false);
    let again = Server::start(
        &served.real,
        vec![export("disk", Arc::new(Memory::new(Blocks(1))))],
        &Address::Unix(served.path.clone()),
        None,
        Limits::default(),
    );
    let refused = again.err().expect("one server at a path").to_string();
    assert!(refused.contains("another server"), "{refused}");
    for number in 0..50u64 {
        client.send(Command::Write, 0, number * 4096, 4096, &[1; 4096]);
    }
    // One reply says that the server has begun with them.
    assert!(matches!(client.reply().expect("a reply"), Reply::Simple { error: 0, .. }));
    served.stop();
    let mut answered = 1;
    while let Ok(reply) = client.reply() {
        assert!(matches!(reply, Reply::Simple { error: 0, .. }));
        answered += 1;
    }
    assert!((1..=50).contains(&answered));
    assert!(!served.path.exists(), "the socket is removed");
}

#[test]
fn addresses_are_read_and_told() {
    for text in ["unix:/run/d.sock", "tcp:127.0.0.1:10809", "tcp:[::1]:0"] {
        assert_eq!(text.parse::<Address>().expect("an address").to_string(), text);
    }
    for text in ["", "unix:", "/run/d.sock", "tcp:127.0.0.1", "tcp:nowhere.invalid:1", "udp:1.2.3.4:5"] {
        assert!(text.parse::<Address>().expect_err("no address").contains("unix:PATH"), "{text}");
    }
    let real = ashlar_env::real::Real::start(1).expect("io_uring is available");
    let device = || vec![export("disk", Arc::new(Memory::new(Blocks(1))))];
    let start =
        |text: &str| Server::start(&real, device(), &text.parse().expect("an address"), None, Limits::default());
    let refused = start("tcp:0.0.0.0:0").err().expect("open to the network").to_string();
    assert!(refused.contains("TLS"), "{refused}");
    let server = start("tcp:127.0.0.1:0").expect("a free port");
    let Address::Tcp(bound) = *server.address() else { panic!("a port") };
    let mut client = common::Client::greet(std::net::TcpStream::connect(bound).expect("it listens"), 3);
    client.go("");
    assert_eq!(client.write(0, b"over TCP"), 0);
    assert_eq!(client.read(0, 8).expect("a read"), b"over TCP");
    real.block_on(server.stop()).expect("nothing fails");
}
