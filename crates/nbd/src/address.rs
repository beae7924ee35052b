//! Where to listen: `unix:PATH` or `tcp:HOST:PORT`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A port; port 0 lets the system choose one.
    Tcp(SocketAddr),
}

impl FromStr for Address {
    type Err = String;
    fn from_str(text: &str) -> Result<Address, String> {
        let help = "write unix:PATH, as in unix:/run/d.sock, or tcp:HOST:PORT, as in tcp:127.0.0.1:10809";
        match text.split_once(':') {
            Some(("unix", "")) => Err(format!("{text:?} names no path: {help}")),
            Some(("unix", path)) => Ok(Address::Unix(path.into())),
            Some(("tcp", host)) => {
                let found = host.to_socket_addrs().map_err(|error| format!("{text:?}: {error}; {help}"))?;
                found.into_iter().next().map(Address::Tcp).ok_or_else(|| format!("{host:?} has no address"))
            }
            _ => Err(format!("{text:?} is no address: {help}")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}
