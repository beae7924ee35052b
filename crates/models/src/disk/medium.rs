//! What passes under the head: positioning, transfer and read-ahead.

use super::Disk;
use super::geometry::Place;
use super::queue::{Arm, Held};
use crate::io::{Kind, SECTOR, Split};

/// The drive reads on behind the last read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    /// First sector that the buffer still holds.
    pub start: u64,
    /// First sector behind the last request.
    pub from: u64,
    /// When `from` was under the head.
    pub from_ns: u64,
    pub limit: u64,
}

impl Disk {
    /// Serves a read from what is being read ahead, if it is there.
    pub(super) fn stream(&mut self, held: &Held, begin_ns: u64, split: &mut Split) -> Option<u64> {
        let ahead = self.ahead?;
        let (first, end) = (held.sector, held.sector + held.request.len / SECTOR);
        if held.request.kind != Kind::Read || first < ahead.start || first > self.reached(&ahead, begin_ns) {
            return None;
        }
        let mut media_ns = ahead.from_ns;
        if end > ahead.from {
            let stop = end.min(ahead.limit);
            media_ns = self.sweep(ahead.from, stop - ahead.from, ahead.from_ns);
            if end > ahead.limit {
                let mut resume_ns = media_ns;
                if media_ns < begin_ns {
                    // The read-ahead was full and the head waited on the track.
                    let place = self.is.geometry.place(ahead.limit);
                    let wait_ns = self.is.geometry.wait_ns(self.is.geometry.angle_ns(&place), begin_ns);
                    split.rotation_ns += wait_ns;
                    resume_ns = begin_ns + wait_ns;
                }
                media_ns = self.sweep(ahead.limit, end - ahead.limit, resume_ns);
            }
        }
        let buffer_ns = begin_ns + self.interface_ns(held.request.len);
        let done_ns = media_ns.max(buffer_ns);
        split.transfer_ns += done_ns - begin_ns - split.rotation_ns;
        let from = end.max(ahead.from);
        self.ahead = Some(Ahead {
            start: ahead.start.max(from.saturating_sub(self.is.read_ahead_sectors)),
            from,
            from_ns: media_ns,
            limit: (from + self.is.read_ahead_sectors).min(self.is.capacity / SECTOR),
        });
        Some(done_ns)
    }

    /// Moves the arm to a request and passes its sectors.
    pub(super) fn position(&mut self, held: &Held, begin_ns: u64, split: &mut Split) -> u64 {
        self.end_ahead(begin_ns);
        let write = held.request.kind == Kind::Write;
        let seek_ns = self.arm.seek_ns(held, &self.is);
        let arrived_ns = begin_ns + seek_ns;
        let rotation_ns = self.is.geometry.wait_ns(held.angle_ns, arrived_ns);
        let sectors = held.request.len / SECTOR;
        let start_ns = arrived_ns + rotation_ns;
        let done_ns = self.sweep(held.sector, sectors, start_ns);
        split.seek_ns += seek_ns;
        split.rotation_ns += rotation_ns;
        split.transfer_ns += done_ns - start_ns;
        let end = held.sector + sectors;
        self.arm = self.arm_at(end - 1, end);
        let room = self.is.read_ahead_sectors;
        self.ahead = (!write && room > 0).then(|| Ahead {
            start: held.sector.max(end.saturating_sub(room)),
            from: end,
            from_ns: done_ns,
            limit: (end + room).min(self.is.capacity / SECTOR),
        });
        done_ns
    }

    /// The arm on the track of a sector.
    fn arm_at(&self, sector: u64, next_sector: u64) -> Arm {
        let place = self.is.geometry.place(sector);
        Arm { cylinder: place.cylinder, surface: place.surface, next_sector }
    }

    /// Time at which `sectors` from `first` on have passed, when `first` is under the head at `start_ns`.
    fn sweep(&self, first: u64, sectors: u64, start_ns: u64) -> u64 {
        let mut time_ns = start_ns;
        let (mut sector, end) = (first, first + sectors);
        while sector < end {
            let place = self.is.geometry.place(sector);
            if sector > first {
                time_ns = self.next_track(&place, time_ns);
            }
            let stop = u64::from(place.sectors_per_track - place.sector).min(end - sector);
            let geometry = &self.is.geometry;
            time_ns +=
                geometry.offset_ns(&place, place.sector + stop as u32) - geometry.offset_ns(&place, place.sector);
            sector += stop;
        }
        time_ns
    }

    /// Time at which the first sector of the next track comes under the head.
    fn next_track(&self, place: &Place, now_ns: u64) -> u64 {
        let settled_ns = now_ns + self.is.read_seek.time_ns(0);
        settled_ns + self.is.geometry.wait_ns(place.track_angle_ns, settled_ns)
    }

    /// How far a read-ahead has come.
    pub(super) fn reached(&self, ahead: &Ahead, now_ns: u64) -> u64 {
        let (mut reached, mut time_ns) = (ahead.from, ahead.from_ns);
        while reached < ahead.limit && time_ns < now_ns {
            let place = self.is.geometry.place(reached);
            let rest = u64::from(place.sectors_per_track - place.sector).min(ahead.limit - reached);
            let end_ns = self.sweep(reached, rest, time_ns);
            if end_ns > now_ns {
                return reached + rest * (now_ns - time_ns) / (end_ns - time_ns);
            }
            reached += rest;
            time_ns = end_ns;
            if reached < ahead.limit {
                time_ns = self.next_track(&self.is.geometry.place(reached), time_ns);
            }
        }
        reached
    }

    /// The read-ahead ends because the arm moves; the buffer keeps what was read.
    pub(super) fn end_ahead(&mut self, now_ns: u64) {
        let Some(ahead) = self.ahead.take() else { return };
        let reached = self.reached(&ahead, now_ns);
        if reached > ahead.from {
            self.arm = self.arm_at(reached - 1, u64::MAX);
        }
        if self.is.segments > 0 {
            if self.segments.len() == self.is.segments {
                self.segments.pop_front();
            }
            self.segments.push_back((ahead.start, reached));
        }
    }
}
