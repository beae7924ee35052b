//! One request: checked, done by the device, answered.

use crate::bytewise::Zeroing;
use crate::handshake::{Agreement, BASE_ALLOCATION_ID};
use crate::wire::{Command, Errno, Found, PAYLOAD_LEN_MAX, Reply, Request, STATE_HOLE, STATE_ZERO, flag};
use ashlar_block::{Durability, Error};
use bytes::Bytes;

/// Shorter holes are sent as zeros, and are not looked for where no longer one fits: telling of them costs more.
const HOLE_LEN_MIN: u32 = 32 << 10;
/// Extents looked at for one answer to READ; what lies behind them is read as data.
const LOOKS_MAX: usize = 16;
/// Extents of one answer to BLOCK_STATUS.
const EXTENTS_MAX: usize = 4096;

/// Why a request fails.
pub(crate) struct Refusal {
    errno: Errno,
    story: String,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal { errno: error.kind().into(), story: error.to_string() }
    }
}

fn refuse(errno: Errno, story: impl Into<String>) -> Refusal {
    Refusal { errno, story: story.into() }
}

/// Whether a request may be done at all; what it says about lengths and places can be relied on afterwards.
pub(crate) fn admit(agreement: &Agreement, request: &Request) -> Result<(), Refusal> {
    let Request { flags, command, offset, len, .. } = *request;
    let invalid = |story: String| Err(refuse(Errno::Invalid, story));
    if let Command::Other(number) = command {
        return invalid(format!("command {number} is not known here"));
    }
    if flags & !command.flags_allowed() != 0 {
        return invalid(format!("{command:?} takes no flags {:#x}", flags & !command.flags_allowed()));
    }
    if command == Command::Flush {
        return Ok(());
    }
    let writes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
    if writes && agreement.export.read_only {
        return Err(refuse(Errno::NotPermitted, "the export is read-only"));
    }
    if len == 0 {
        return invalid(format!("{command:?} of nothing"));
    }
    if matches!(command, Command::Read | Command::Write) && len > PAYLOAD_LEN_MAX {
        return invalid(format!("{command:?} of {len} bytes; at most {PAYLOAD_LEN_MAX} are served"));
    }
    let size = agreement.export.device.size().0;
    if offset.checked_add(u64::from(len)).is_none_or(|end| end > size) {
        let errno =
            if matches!(command, Command::Write | Command::WriteZeroes) { Errno::NoSpace } else { Errno::Invalid };
        return Err(refuse(
            errno,
            format!("{command:?} of {len} bytes at {offset} passes the end of the export ({size})"),
        ));
    }
    if command == Command::BlockStatus && !agreement.allocation {
        return invalid("no metadata context was agreed on".into());
    }
    Ok(())
}

/// The answer to a request that was refused.
pub(crate) fn refused(agreement: &Agreement, request: &Request, refusal: &Refusal) -> Reply {
    if agreement.structured {
        Reply::error(request.cookie, refusal.errno, &refusal.story)
    } else {
        Reply::simple(request.cookie, Some(refusal.errno), None)
    }
}

/// Does what was admitted.
pub(crate) async fn execute(agreement: &Agreement, request: &Request, data: Bytes) -> Reply {
    match attempt(agreement, request, data).await {
        Ok(reply) => reply,
        Err(refusal) => refused(agreement, request, &refusal),
    }
}

async fn attempt(agreement: &Agreement, request: &Request, data: Bytes) -> Result<Reply, Refusal> {
    let Request { flags, command, cookie, offset, len } = *request;
    let device = &agreement.export.device;
    let forced = flags & flag::FUA != 0;
    match command {
        Command::Read if agreement.structured => {
            let whole = flags & flag::DF != 0 || len < HOLE_LEN_MIN;
            return Ok(Reply::found(cookie, offset, find(agreement, offset, len, whole).await?));
        }
        Command::Read => {
            let data = device.read(offset, len as usize).await?;
            return Ok(Reply::simple(cookie, None, Some(data)));
        }
        Command::Write => {
            let durability = if forced { Durability::Forced } else { Durability::Cached };
            device.write(offset, data, durability).await?;
        }
        Command::Flush => device.flush().await?,
        Command::Trim if !device.can_trim() => {
            return Err(refuse(Errno::Unsupported, "the device cannot give space back"));
        }
        Command::Trim => {
            device.trim(offset, u64::from(len)).await?;
            if forced {
                device.flush().await?;
            }
        }
        Command::WriteZeroes => {
            let how = Zeroing { keep_space: flags & flag::NO_HOLE != 0, only_fast: flags & flag::FAST_ZERO != 0 };
            device.zero(offset, u64::from(len), how).await?;
            if forced {
                device.flush().await?;
            }
        }
        Command::BlockStatus => {
            let limit = if flags & flag::REQ_ONE != 0 { 1 } else { EXTENTS_MAX };
            return Ok(Reply::block_status(cookie, BASE_ALLOCATION_ID, &extents(agreement, offset, len, limit).await?));
        }
        Command::Disconnect | Command::Other(_) => return Err(refuse(Errno::Invalid, "nothing to do")),
    }
    Ok(Reply::simple(cookie, None, None))
}

/// What a range holds, in parts.
async fn find(agreement: &Agreement, mut offset: u64, len: u32, whole: bool) -> Result<Vec<Found>, Refusal> {
    let device = &agreement.export.device;
    let runs = if whole { Vec::new() } else { extents(agreement, offset, len, LOOKS_MAX).await? };
    let known: u32 = runs.iter().map(|(len, _)| len).sum();
    let mut worthwhile = Vec::new();
    for (len, state) in runs.into_iter().chain((known < len).then_some((len - known, 0))) {
        append(&mut worthwhile, len, if len < HOLE_LEN_MIN { 0 } else { state });
    }
    let mut parts = Vec::with_capacity(worthwhile.len());
    for (len, state) in worthwhile {
        parts.push(match state {
            0 => Found::Data(device.read(offset, len as usize).await?),
            _ => Found::Hole(len),
        });
        offset += u64::from(len);
    }
    Ok(parts)
}

/// Adds an extent behind others; neighbours with one state become one.
fn append(extents: &mut Vec<(u32, u32)>, len: u32, state: u32) {
    match extents.last_mut() {
        Some(last) if last.1 == state => last.0 += len,
        _ => extents.push((len, state)),
    }
}

/// Extents from `offset` on as (length, state), at most `limit`: together they cover `len` bytes or a part from the
/// front. Neighbours differ.
async fn extents(agreement: &Agreement, offset: u64, len: u32, limit: usize) -> Result<Vec<(u32, u32)>, Refusal> {
    let mut found: Vec<(u32, u32)> = Vec::new();
    let mut done = 0;
    while done < len {
        let (hole, run) = agreement.export.device.extent(offset + u64::from(done), u64::from(len - done)).await?;
        let run = u32::try_from(run).unwrap_or(u32::MAX).min(len - done);
        let state = if hole { STATE_HOLE | STATE_ZERO } else { 0 };
        if found.len() == limit && found.last().is_some_and(|last| last.1 != state) {
            break;
        }
        append(&mut found, run, state);
        done += run;
    }
    Ok(found)
}
