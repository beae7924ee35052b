//! Encrypted connections, with a certificate that each run makes for itself.

mod common;

use ashlar_s3::{Credentials, Options, Tls};
use common::{KEY, SECRET, Scratch, Served, attempt, run};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn certificate() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_string(), "127.0.0.1".to_string()]).expect("a certificate")
}

/// Writes a file that only its owner can read.
fn write(scratch: &Scratch, name: &str, text: &str) -> PathBuf {
    let path = scratch.at(name);
    std::fs::write(&path, text).expect("a scratch file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("our own file");
    path
}

#[test]
fn clients_over_tls() {
    let scratch = Scratch::new("tls");
    let own = certificate();
    let (chain, secret) =
        (write(&scratch, "chain", &own.cert.pem()), write(&scratch, "key", &own.signing_key.serialize_pem()));
    let tls = Tls::load(&chain, &secret).expect("a pair");
    let served =
        Served::with(Options { credentials: Credentials::one(KEY, SECRET), tls: Some(tls), ..Options::default() });
    served.bucket("photos");
    let file = scratch.file("file", 9_000_001);
    let (file, back, chain) = (file.display(), scratch.at("back"), chain.display());
    let back = back.display();
    let url = format!("https://{}/photos/file", served.address());
    let sign = format!("--aws-sigv4 aws:amz:us-east-1:s3 --user {KEY}:{SECRET}");
    for version in ["--tlsv1.2 --tls-max 1.2", "--tlsv1.3"] {
        let curl = format!("curl -sSf --cacert {chain} {version} {sign} -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD'");
        run(&served, &format!("{curl} -T {file} {url} && {curl} {url} -o {back} && cmp {file} {back}"));
    }
    // Who does not know the certificate does not talk; nor does who does not encrypt.
    let (succeeded, said) = attempt(&served, &format!("curl -sS {sign} {url}"));
    assert!(!succeeded && said.contains("certificate"), "{said}");
    let plain = served.raw(b"GET /photos/file HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(!plain.contains("HTTP/1.1 "), "{plain}");
    // boto3: signed chunks and trailers, parts, many connections.
    let program = format!(
        "import boto3; s3 = boto3.client('s3', endpoint_url='https://{}', verify='{chain}'); \
         s3.upload_file('{file}', 'photos', 'more'); s3.download_file('photos', 'more', '{back}')",
        served.address()
    );
    run(&served, &format!("rm {back}; python -c \"{program}\" && cmp {file} {back}"));
}

#[test]
fn wrong_files_are_told_apart() {
    let scratch = Scratch::new("tls-wrong");
    let (own, other) = (certificate(), certificate());
    let chain = write(&scratch, "chain", &own.cert.pem());
    let secret = write(&scratch, "key", &own.signing_key.serialize_pem());
    let foreign = write(&scratch, "foreign", &other.signing_key.serialize_pem());
    let (empty, torn) = (write(&scratch, "empty", ""), write(&scratch, "torn", &own.cert.pem()[..60]));
    let sealed =
        write(&scratch, "sealed", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
    let nothing = scratch.at("nothing");
    let open = write(&scratch, "open", &own.signing_key.serialize_pem());
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).expect("our own file");
    Tls::load(&chain, &secret).expect("a pair");
    let wrong: [(&Path, &Path, &str); 10] = [
        (&chain, &foreign, "not the key of the first certificate"),
        (&nothing, &secret, "nothing: No such file"),
        (&chain, &nothing, "nothing: No such file"),
        (&scratch.0, &secret, "directory"),
        (&chain, &scratch.0, "directory"),
        (&secret, &chain, "swapped"),
        (&empty, &secret, "there is no certificate in it"),
        (&torn, &secret, "a PEM file with a certificate is needed"),
        (&chain, &sealed, "openssl pkey"),
        (&chain, &open, "chmod 600"),
    ];
    for (chain, secret, help) in wrong {
        let said = Tls::load(chain, secret).expect_err(help);
        assert!(said.contains(help), "{said:?} does not say {help:?}");
    }
}
