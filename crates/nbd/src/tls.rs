//! Certificates, and a socket's bytes under TLS.

use crate::channel::Socket;
use ashlar_block::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use std::io::{self, IoSlice, Read, Write};
use std::path::Path;
use std::sync::Arc;

/// What a server needs to encrypt. Clients of a server that has it must.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl Tls {
    /// Reads the server's certificates (its own first) and key, and with `authorities` the certificates that sign those of
    /// clients: clients without one are then refused. All are PEM files.
    pub fn load(certificate: &Path, key: &Path, authorities: Option<&Path>) -> Result<Tls> {
        let wrong = |path: &Path, why: &dyn std::fmt::Display| Error::misuse(format!("{}: {why}", path.display()));
        let chain = certificates(certificate)?;
        let secret = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| wrong(key, &format!("{error}; a PEM file with a private key is needed")))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(certificate, &error))?;
        let config = match authorities {
            None => config.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path)? {
                    roots.add(authority).map_err(|error| wrong(path, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                config.with_client_cert_verifier(verifier.map_err(|error| wrong(path, &error))?)
            }
        };
        let config = config.with_single_cert(chain, secret).map_err(|error| wrong(certificate, &error))?;
        Ok(Tls(Arc::new(config)))
    }

    /// A connection that is still to be agreed on.
    pub(crate) fn accept(&self) -> io::Result<Session> {
        ServerConnection::new(self.0.clone()).map(Session).map_err(io::Error::other)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let wrong = |why: &dyn std::fmt::Display| {
        Error::misuse(format!("{}: {why}; a PEM file with certificates is needed", path.display()))
    };
    let read = CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
    let found = read.collect::<Result<Vec<_>, _>>().map_err(|error| wrong(&error))?;
    if found.is_empty() { Err(wrong(&"there is no certificate in it")) } else { Ok(found) }
}

/// One connection's keys and half-done records.
pub(crate) struct Session(ServerConnection);

impl Session {
    /// Goes on with the agreement; whether it is complete. `WouldBlock` says to wait: to write if there is something
    /// unsent, else to read.
    pub(crate) fn agree(&mut self, socket: &Socket) -> io::Result<()> {
        while self.0.is_handshaking() {
            self.flush(socket)?;
            self.receive(socket)?;
        }
        self.flush(socket)
    }

    /// Whether bytes wait to be sent.
    pub(crate) fn is_unsent(&self) -> bool {
        self.0.wants_write()
    }

    /// Sends what waits.
    pub(crate) fn flush(&mut self, mut socket: &Socket) -> io::Result<()> {
        while self.0.wants_write() {
            self.0.write_tls(&mut socket)?;
        }
        Ok(())
    }

    fn receive(&mut self, mut socket: &Socket) -> io::Result<()> {
        if self.0.read_tls(&mut socket)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let outcome = self.0.process_new_packets();
        if let Err(error) = outcome {
            // The other side is told why, if it still listens.
            let _ = self.flush(socket);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(())
    }

    /// Takes what there is; 0 at the end.
    pub(crate) fn read(&mut self, socket: &Socket, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.receive(socket)?,
                outcome => return outcome,
            }
        }
    }

    /// Gives what goes; what is taken may still have to be flushed.
    pub(crate) fn write(&mut self, socket: &Socket, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush(socket)?;
        let count = self.0.writer().write_vectored(slices)?;
        match self.flush(socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(count),
        }
    }
}
