//! Servers of S3 that can be measured, and how each is started.

use super::client::{Client, KEY, SECRET};
use crate::bench::server::Server;
use crate::bench::{find_program, quiet, said};
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of our devices: they are sparse.
const DEVICE: &str = "8GiB";
const DEVICE_BYTES: u64 = 8 << 30;

/// How a server is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ours, with buckets of an engine.
    Ashlar(&'static str),
    MinIo,
    Versity,
    SeaweedFs,
}

/// Engines of ours that are measured.
pub const OURS: [Kind; 2] = [Kind::Ashlar("pool"), Kind::Ashlar("regions")];
/// Others.
pub const PEERS: [Kind; 3] = [Kind::MinIo, Kind::Versity, Kind::SeaweedFs];

impl Kind {
    /// The program, as it is called in a `PATH`.
    pub fn program(self) -> &'static str {
        match self {
            Kind::Ashlar(_) => "ashlar",
            Kind::MinIo => "minio",
            Kind::Versity => "versitygw",
            Kind::SeaweedFs => "weed",
        }
    }
    /// What an answered put promises, when the server is started as here.
    pub fn promise(self) -> &'static str {
        match self {
            Kind::Ashlar(_) => "survives a power cut",
            Kind::MinIo => "data flushed before the object is renamed into place; the directory is not",
            Kind::Versity | Kind::SeaweedFs => "nothing: no flush",
        }
    }
}

/// A server that takes part.
pub struct Contender {
    pub kind: Kind,
    pub name: String,
    pub version: String,
    program: PathBuf,
}

impl Contender {
    /// Looks for a program: where the user says, or in `PATH`.
    pub fn find(kind: Kind, given: Option<&Path>) -> Result<Contender, String> {
        let program = given.map(Path::to_path_buf).or_else(|| find_program(kind.program()));
        let program = program
            .ok_or_else(|| format!("{0} is not in PATH; --peer-{0} PROGRAM says where it is", kind.program()))?;
        let flag = if kind == Kind::SeaweedFs { "version" } else { "--version" };
        let version = said(Command::new(&program).arg(flag))?;
        let version = version.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unknown").to_string();
        let name = match kind {
            Kind::Ashlar(engine) => format!("ashlar, {engine}"),
            kind => kind.program().to_string(),
        };
        Ok(Contender { kind, name, version, program })
    }

    /// Starts it on an empty directory, and makes a bucket.
    pub fn start(&self, place: &Path) -> Result<(Server, Client), String> {
        let address = free_port()?;
        let data = place.join("data");
        fs::create_dir_all(&data).map_err(|error| format!("{}: {error}", data.display()))?;
        let mut command = Command::new(&self.program);
        match self.kind {
            Kind::Ashlar(engine) => {
                let pool = self.prepare(place, engine)?;
                let keys = place.join("keys");
                fs::write(&keys, format!("{KEY} {SECRET}\n")).map_err(|error| error.to_string())?;
                quiet(Command::new("chmod").arg("600").arg(&keys))?;
                command.args(["s3", "serve", "--listen", &address.to_string(), "--credentials"]).arg(&keys);
                command.env("ASHLAR_POOL", &pool);
            }
            Kind::MinIo => {
                command.args(["server", "--quiet", "--address", &address.to_string()]);
                command.args(["--console-address", &free_port()?.to_string()]).arg(&data);
                command.env("MINIO_ROOT_USER", KEY).env("MINIO_ROOT_PASSWORD", SECRET);
                command.env("MINIO_BROWSER", "off").env("MINIO_UPDATE", "off").env("HOME", place);
            }
            Kind::Versity => {
                command.args([
                    "--access",
                    KEY,
                    "--secret",
                    SECRET,
                    "--port",
                    &address.to_string(),
                    "--quiet",
                    "--keep-alive",
                ]);
                command.arg("posix").arg(&data);
            }
            Kind::SeaweedFs => {
                let config = place.join("s3.json");
                let identities = format!(
                    r#"{{"identities":[{{"name":"bench","credentials":[{{"accessKey":"{KEY}","secretKey":"{SECRET}"}}],"actions":["Admin","Read","Write","List"]}}]}}"#
                );
                fs::write(&config, identities).map_err(|error| error.to_string())?;
                command.args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.peers=none", "-filer", "-s3"]);
                command.arg(format!("-dir={}", data.display())).arg(format!("-s3.config={}", config.display()));
                command.arg(format!("-s3.port={}", address.port()));
            }
        }
        let mut server = Server::start(&mut command, place.join("server.log"))?;
        let client = Client::new(address)?;
        match self.kind {
            // The bucket is there; a request that is answered shows that it serves.
            Kind::Ashlar(_) => server.wait_until(|| std::net::TcpStream::connect(address).is_ok())?,
            _ => server.wait_until(|| client.make_bucket())?,
        }
        Ok((server, client))
    }

    /// Makes a pool and a bucket; the pool's directory.
    fn prepare(&self, place: &Path, engine: &str) -> Result<PathBuf, String> {
        let pool = place.join("pool");
        let device = |name: &str| place.join(name).display().to_string();
        let ashlar = || {
            let mut command = Command::new(&self.program);
            command.env("ASHLAR_POOL", &pool);
            command
        };
        let own = format!("{},size={DEVICE}", device("pool.device"));
        quiet(ashlar().args(["pool", "create"]).arg(&pool).args(["--device", &own]))?;
        let mut create = ashlar();
        create.args(["bucket", "create", "bench", "--engine", engine]);
        if engine == "regions" {
            let disk = fs::File::create(device("disk")).and_then(|file| file.set_len(DEVICE_BYTES));
            disk.map_err(|error| format!("{}: {error}", device("disk")))?;
            create.args(["--device", &device("disk")]);
        }
        quiet(&mut create)?;
        Ok(pool)
    }
}

/// A port that nobody has at this moment.
fn free_port() -> Result<SocketAddr, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    listener.map_err(|error| format!("127.0.0.1: {error}"))
}
