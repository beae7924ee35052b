//! What the machine says about processes that run: their descriptors and directories.

use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A descriptor, as `/proc/PID/fd` and `fdinfo` show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// What it links to: a path, or text such as `socket:[1]`. Empty if it is neither a file nor a directory.
    pub target: Vec<u8>,
    /// Where the next read or write begins.
    pub position: u64,
    /// As given to `open`; `O_CLOEXEC` is that of the descriptor.
    pub flags: u64,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Its current directory, absolute; `None` if unknown.
    pub directory: Option<Vec<u8>>,
    /// Its root directory.
    pub root: Vec<u8>,
    /// Its descriptors.
    pub descriptors: Vec<(u32, Seen)>,
}

/// Who can be asked about processes.
pub trait Host {
    /// A process as it is now.
    fn process(&mut self, process: u32) -> Option<State>;
    /// A descriptor as it is now.
    fn descriptor(&mut self, process: u32, fd: u32) -> Option<Seen>;
    /// Bytes of a file as it is now.
    fn size(&mut self, path: &str) -> Option<u64>;
}

/// Nobody knows: what is traced ran at another time. Standard input and output are taken for no files.
pub struct Past {
    /// Where every process began, if it was not made by another one.
    pub directory: PathBuf,
}

impl Host for Past {
    fn process(&mut self, _: u32) -> Option<State> {
        Some(State {
            directory: Some(self.directory.clone().into_os_string().into_vec()),
            root: b"/".to_vec(),
            descriptors: (0..3).map(|fd| (fd, Seen::default())).collect(),
        })
    }
    fn descriptor(&mut self, _: u32, _: u32) -> Option<Seen> {
        None
    }
    fn size(&mut self, _: &str) -> Option<u64> {
        None
    }
}

/// The processes of this machine, by `/proc`. What it says is of now, a little later than what was traced.
pub struct Proc;

impl Host for Proc {
    fn process(&mut self, process: u32) -> Option<State> {
        let home = PathBuf::from(format!("/proc/{process}"));
        let link = |name: &str| std::fs::read_link(home.join(name)).ok().map(|path| path.into_os_string().into_vec());
        let root = link("root")?;
        let mut descriptors: Vec<(u32, Seen)> = Vec::new();
        for entry in std::fs::read_dir(home.join("fd")).ok()?.flatten() {
            let fd = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let seen = fd.and_then(|fd| Some((fd, descriptor(&home, fd)?)));
            descriptors.extend(seen);
        }
        descriptors.sort_by_key(|(fd, _)| *fd);
        Some(State { directory: link("cwd"), root, descriptors })
    }
    fn descriptor(&mut self, process: u32, fd: u32) -> Option<Seen> {
        descriptor(Path::new(&format!("/proc/{process}")), fd)
    }
    fn size(&mut self, path: &str) -> Option<u64> {
        std::fs::metadata(path).ok().map(|metadata| metadata.len())
    }
}

fn descriptor(home: &Path, fd: u32) -> Option<Seen> {
    let link = home.join(format!("fd/{fd}"));
    let mut target = std::fs::read_link(&link).ok()?.into_os_string().into_vec();
    if let Some(stem) = target.strip_suffix(b" (deleted)") {
        target.truncate(stem.len());
    }
    if std::fs::metadata(&link).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
        target.clear();
    }
    let info = std::fs::read_to_string(home.join(format!("fdinfo/{fd}"))).ok()?;
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let position = field("pos:").and_then(|text| text.parse().ok()).unwrap_or(0);
    let flags = field("flags:").and_then(|text| u64::from_str_radix(text, 8).ok()).unwrap_or(0);
    Some(Seen { target, position, flags })
}

/// All processes that run now.
pub fn processes() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The threads of a process.
pub fn threads(process: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/task")) else { return vec![process] };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom};
    use std::os::fd::AsRawFd;

    #[test]
    fn this_process_is_seen() {
        let path = std::env::temp_dir().join(format!("ashlar-host-{}", std::process::id()));
        std::fs::write(&path, b"some text").expect("space");
        let mut file = std::fs::File::open(&path).expect("it is there");
        file.seek(SeekFrom::Start(5)).expect("a file");
        let (id, fd) = (std::process::id(), file.as_raw_fd() as u32);
        let state = Proc.process(id).expect("it runs");
        let seen = state.descriptors.iter().find(|(number, _)| *number == fd).map(|(_, seen)| seen);
        let seen = seen.expect("it is open");
        assert_eq!(seen.target, path.as_os_str().as_encoded_bytes());
        assert_eq!((seen.position, seen.flags & 0o2_000_003), (5, 0o2_000_000));
        assert_eq!(state.root, b"/");
        assert!(state.directory.is_some() && processes().contains(&id) && threads(id).contains(&id));
        assert_eq!(Proc.size(path.to_str().expect("a path")), Some(9));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let seen = Proc.descriptor(id, socket.as_raw_fd() as u32).expect("it is open");
        assert_eq!(seen.target, b"");
        std::fs::remove_file(&path).expect("it is ours");
    }
}
