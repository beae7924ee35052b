//! Mounting for users who may not: by `fusermount3`, the set-user-id program that comes with libfuse and is trusted with it.

use crate::sys::Users;
use rustix::cmsg_space;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = "fusermount3";

/// What it said when it failed. Not found: it is not installed.
fn run(command: &mut Command) -> io::Result<()> {
    let output = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("busy") {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    Err(io::Error::other(said.trim().to_string()))
}

/// Mounts at a directory that the user may write to. Gives the descriptor that serves it, non-blocking.
pub(crate) fn mount(at: &Path, options: &str) -> io::Result<OwnedFd> {
    let (ours, its) = UnixStream::pair()?;
    let mut command = Command::new(PROGRAM);
    command.arg("-o").arg(options).arg("--").arg(at);
    // It sends the descriptor through the socket that this names: its standard input.
    command.env("_FUSE_COMMFD", "0").stdin(OwnedFd::from(its));
    run(&mut command)?;
    drop(command); // its end of the sockets, or a helper that sent nothing would be waited for
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut buffer = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(&ours, &mut [IoSliceMut::new(&mut [0])], &mut buffer, flags)?;
    let device = buffer.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let device = device.ok_or_else(|| io::Error::other(format!("{PROGRAM} gave no descriptor")))?;
    fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
    Ok(device)
}

/// Unmounts what this user has mounted; `connection` is the minor number of the mount's device.
pub(crate) fn unmount(at: &Path, users: Users, connection: Option<&str>) -> io::Result<()> {
    if let (Users::Fail, Some(connection)) = (users, connection) {
        // Where that file system is not mounted, those who wait do so until this process ends.
        let _ = std::fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1");
    }
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if !matches!(users, Users::None) {
        command.arg("-z");
    }
    run(command.arg("--").arg(at).stdin(Stdio::null()))
}
