//! Encrypted connections. The certificates in `data` are for these tests only.

mod common;

use ashlar_devices::Memory;
use ashlar_env::real::Real;
use ashlar_nbd::options::{Choice, Kind};
use ashlar_nbd::wire::Command;
use ashlar_nbd::{Address, Limits, Server, Tls};
use ashlar_units::Blocks;
use common::{ACK, Client, ERR_INVALID, ERR_TLS_REQUIRED, Reply, export};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn serve(real: &Real, authorities: Option<&str>) -> (Server, SocketAddr) {
    let authorities = authorities.map(data);
    let tls = Tls::load(&data("server-cert.pem"), &data("server-key.pem"), authorities.as_deref());
    let exports = vec![export("disk", Arc::new(Memory::new(Blocks(4096))))];
    let address = "tcp:127.0.0.1:0".parse().expect("an address");
    let server =
        Server::start(real, exports, &address, Some(tls.expect("good files")), Limits::default()).expect("a free port");
    let Address::Tcp(bound) = *server.address() else { panic!("a port") };
    (server, bound)
}

fn configuration(with_certificate: bool) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(data("ca-cert.pem")).expect("a certificate")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    Arc::new(if with_certificate {
        let chain = vec![CertificateDer::from_pem_file(data("client-cert.pem")).expect("a certificate")];
        let key = PrivateKeyDer::from_pem_file(data("client-key.pem")).expect("a key");
        builder.with_client_auth_cert(chain, key).expect("a pair")
    } else {
        builder.with_no_client_auth()
    })
}

type Encrypted = StreamOwned<ClientConnection, TcpStream>;

fn encrypt(mut client: Client<TcpStream>, with_certificate: bool) -> Client<Encrypted> {
    assert_eq!(client.outcome(Kind::StartTls, &[]), ACK);
    let name = "localhost".try_into().expect("a name");
    let connection = ClientConnection::new(configuration(with_certificate), name).expect("a configuration");
    let Client { stream, structured, size, flags, .. } = client;
    let mut fresh = Client::unchecked(StreamOwned::new(connection, stream));
    (fresh.structured, fresh.size, fresh.flags) = (structured, size, flags);
    fresh
}

fn connect(at: SocketAddr) -> Client<TcpStream> {
    Client::greet(TcpStream::connect(at).expect("it listens"), 3)
}

#[test]
fn encrypted_clients_are_served_and_others_are_not() {
    let real = Real::start(2).expect("io_uring is available");
    let (server, at) = serve(&real, None);
    let mut client = connect(at);
    let go = Choice { name: "disk".into(), wanted: vec![] }.encode();
    assert_eq!(client.outcome(Kind::Go, &go), ERR_TLS_REQUIRED);
    assert_eq!(client.outcome(Kind::List, &[]), ERR_TLS_REQUIRED);
    assert_eq!(client.outcome(Kind::StructuredReply, &[]), ERR_TLS_REQUIRED);
    assert_eq!(client.outcome(Kind::StartTls, b"x"), ERR_INVALID);
    let mut client = encrypt(client, false);
    assert_eq!(client.outcome(Kind::StartTls, &[]), ERR_INVALID);
    client.agree_on_structured();
    client.go("disk");
    // Larger than every buffer on the way, several at once.
    let data: Vec<u8> = (0..3_000_000u32).map(|number| (number ^ number >> 8) as u8).collect();
    assert_eq!(client.write(777, &data), 0);
    assert!(client.read(777, data.len() as u32).expect("a read") == data);
    let cookies: Vec<u64> = (0..20).map(|_| client.send(Command::Read, 4, 777, 3_000_000, &[])).collect();
    for _ in &cookies {
        let Reply::Chunk { cookie, kind: 1, data: found, .. } = client.reply().expect("a reply") else {
            panic!("data")
        };
        assert!(cookies.contains(&cookie) && found[8..] == data[..]);
    }
    let mut old = connect(at);
    old.option(Kind::ExportName, b"disk");
    assert!(old.is_closed());
    drop(client);
    real.block_on(server.stop()).expect("nothing fails");
}

#[test]
fn bytes_in_the_clear_behind_starttls_end_the_connection() {
    let real = Real::start(1).expect("io_uring is available");
    let (server, at) = serve(&real, None);
    let mut client = connect(at);
    let option = |kind| ashlar_nbd::options::Header { kind, len: 0 }.encode();
    // In one segment, so that the server has both when it answers the first.
    client.say(&[option(Kind::StartTls), option(Kind::StructuredReply)].concat());
    assert_eq!(client.option_reply().expect("a reply").kind, ACK);
    // What follows is TLS, and it is an alert: 21, and no reply to the option.
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    assert!(rest.len() < 20 && rest.first() == Some(&21), "{rest:?}");
    real.block_on(server.stop()).expect("nothing fails");
}

#[test]
fn clients_need_a_certificate_where_that_is_asked_for() {
    let real = Real::start(1).expect("io_uring is available");
    let (server, at) = serve(&real, Some("ca-cert.pem"));
    let mut with = encrypt(connect(at), true);
    with.go("disk");
    assert_eq!(with.write(0, b"known"), 0);
    let mut without = encrypt(connect(at), false);
    assert!(without.take::<1>().is_err());
    // Noise instead of TLS.
    let mut noise = connect(at);
    assert_eq!(noise.outcome(Kind::StartTls, &[]), ACK);
    noise.say(&[0x55; 4000]);
    while noise.take::<1>().is_ok() {}
    drop(with);
    real.block_on(server.stop()).expect("nothing fails");
}

#[test]
fn bad_files_are_named() {
    let (certificate, key) = (data("server-cert.pem"), data("server-key.pem"));
    for (certificate, key, authorities, named) in [
        (&data("none.pem"), &key, None, "none.pem"),
        (&key, &key, None, "no certificate"),
        (&certificate, &certificate, None, "private key"),
        (&certificate, &data("client-key.pem"), None, "server-cert.pem"),
        (&certificate, &key, Some(&key), "no certificate"),
    ] {
        let error = Tls::load(certificate, key, authorities.map(PathBuf::as_path)).err().expect(named).to_string();
        assert!(error.contains(named), "{error}");
    }
}
