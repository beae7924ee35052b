//! Certificate and key of a server that encrypts.

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// A certificate and its key.
#[derive(Clone)]
pub struct Tls(Arc<rustls::ServerConfig>);

impl std::fmt::Debug for Tls {
    /// The key is not printed.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads PEM files: the server's certificate, with those that sign it behind it, and its key, which others must not be
    /// able to read.
    ///
    /// # Errors
    /// What is wrong with which file, and how to mend it.
    pub fn load(certificate: &Path, key: &Path) -> Result<Tls, String> {
        let chain = chain(certificate)?;
        let secret = secret(key)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.and_then(|config| config.with_no_client_auth().with_single_cert(chain, secret));
        let mut config = config.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => format!(
                "{} is not the key of the first certificate in {}: give the two that were made together, and the server's \
                 own certificate before those that sign it",
                key.display(),
                certificate.display()
            ),
            error => wrong(certificate, &error),
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls(Arc::new(config)))
    }

    pub(crate) fn acceptor(self) -> TlsAcceptor {
        TlsAcceptor::from(self.0)
    }
}

fn wrong(path: &Path, why: &dyn std::fmt::Display) -> String {
    format!("{}: {why}", path.display())
}

/// What is wrong with a file in which `what` was sought.
fn unread(path: &Path, error: &PemError, what: &str) -> String {
    match error {
        PemError::Io(error) => wrong(path, error),
        PemError::NoItemsFound => wrong(path, &format_args!("there is no {what} in it; it must be PEM text")),
        error => wrong(path, &format_args!("{error}; a PEM file with a {what} is needed")),
    }
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = read.map_err(|error| unread(path, &error, "certificate"))?;
    if !chain.is_empty() {
        return Ok(chain);
    }
    if PrivateKeyDer::from_pem_file(path).is_ok() {
        return Err(wrong(path, &"this is a key, not a certificate; are the two files swapped?"));
    }
    Err(unread(path, &PemError::NoItemsFound, "certificate"))
}

fn secret(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let about = std::fs::metadata(path).map_err(|error| wrong(path, &error))?;
    let secret = PrivateKeyDer::from_pem_file(path).map_err(|error| {
        let sealed = std::fs::read_to_string(path).is_ok_and(|text| text.contains("BEGIN ENCRYPTED PRIVATE KEY"));
        if sealed {
            let mend =
                format_args!("the key is encrypted; `openssl pkey -in {} -out FILE` decrypts it", path.display());
            return wrong(path, &mend);
        }
        unread(path, &error, "private key")
    })?;
    // A group may read it: so distributions share keys between servers.
    if about.permissions().mode() & 0o007 != 0 {
        return Err(wrong(path, &format_args!("everybody can read this key: chmod 600 {}", path.display())));
    }
    Ok(secret)
}
