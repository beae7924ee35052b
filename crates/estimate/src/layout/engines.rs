//! What an update and a scan cost in each layout. Times are milliseconds.

use super::drive::Drive;
use ashlar_models::endurance::greedy_amplification;
use schemars::JsonSchema;
use serde::Serialize;

/// Blocks of data and their checksum block in a group of the array.
const GROUP: f64 = 63.0;
/// Blocks of a serial read, the paper's: an indirect block's.
const READ: f64 = 974.0;
/// Bytes of a block.
pub const BLOCK: f64 = 4096.0;
/// Points at which an integral over phases and gaps is taken.
const STEPS: usize = 400;

/// How updates find their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Where the old contents are, parity and checksums too.
    InPlace,
    /// Staged on flash until an extent has many, then near their neighbours: our engine `proximal`.
    Proximal,
    /// In order into segments that cleaning made empty: our pool.
    LogStructured,
    /// Into whatever holes are nearest to the heads; nothing is cleaned.
    WriteAnywhere,
}

impl Layout {
    /// All of them.
    pub const ALL: [Layout; 4] = [Layout::InPlace, Layout::Proximal, Layout::LogStructured, Layout::WriteAnywhere];

    /// Those that one can have here; writing anywhere is a control.
    pub const CHOICES: [Layout; 3] = [Layout::InPlace, Layout::Proximal, Layout::LogStructured];

    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Layout::InPlace => "in place",
            Layout::Proximal => "proximal",
            Layout::LogStructured => "log-structured",
            Layout::WriteAnywhere => "write anywhere",
        }
    }
}

/// Drives and what is done on them.
#[derive(Clone, Debug)]
pub struct Load {
    /// The drives.
    pub drive: Drive,
    /// Drives of data; one of parity comes to them.
    pub data_drives: f64,
    /// Bytes that are updated and scanned.
    pub data: f64,
    /// Bytes of an extent.
    pub extent: f64,
    /// Bytes of an update, whole blocks at random places.
    pub update: f64,
    /// Part of the disks that is in use where nothing is cleaned.
    pub full: f64,
    /// Part of a pool that is in use.
    pub fill: f64,
    /// What staging holds, as part of the disks.
    pub staging: f64,
    /// Updates that are made durable together, where they are not staged.
    pub batch: f64,
    /// Part of the blocks that were updated since they were last written in order.
    pub moved: f64,
}

/// Different ones of `m` that `n` random draws hit.
pub fn hit(m: f64, n: f64) -> f64 {
    m * (1.0 - (1.0 - 1.0 / m.max(1.0)).powf(n))
}

/// The longer of the waits of two drives until a block and the checksum block of its group have both passed, in revolutions, when
/// neither drive's phase is known. `gap`: how far apart both may be, in revolutions.
pub fn both_pass(gap: f64) -> f64 {
    let steps = STEPS as f64;
    let mean = |gap: f64| {
        // With the head before both, the wait is even from gap to 1; with it between them, from 1 - gap to 1.
        let below = |wait: f64| {
            let part = |from: f64| if from >= 1.0 { 0.0 } else { ((wait - from) / (1.0 - from)).clamp(0.0, 1.0) };
            (1.0 - gap) * part(gap) + gap * part(1.0 - gap)
        };
        (0..STEPS).map(|step| 1.0 - below((step as f64 + 0.5) / steps).powi(2)).sum::<f64>() / steps
    };
    (0..STEPS).map(|step| mean(gap.min(1.0) * (step as f64 + 0.5) / steps)).sum::<f64>() / steps
}

impl Load {
    fn blocks(&self) -> f64 {
        self.extent / BLOCK
    }

    /// Blocks of an update.
    pub fn run(&self) -> f64 {
        (self.update / BLOCK).max(1.0)
    }

    /// Updates of an extent that wait in staging when it is destaged: staging holds so many of each extent.
    pub fn waiting(&self) -> f64 {
        self.blocks() * self.staging / self.full / self.run()
    }

    /// Reads and writes of a batch on all drives, blocks of checksums too (subtraction of parity): the data drives, and that of
    /// parity.
    pub fn batch_ios(&self, updates: f64) -> (f64, f64) {
        let blocks = updates * self.run();
        let groups = self.blocks() / GROUP;
        let rows = self.blocks() / self.data_drives;
        // Updates of one size fall on so many different places.
        let places = |all: f64| hit(all / self.run().min(all), updates) * self.run().min(all);
        let data = 2.0 * blocks + 2.0 * hit(groups, updates);
        let parity = 2.0 * places(rows) + 2.0 * hit(groups / self.data_drives, updates);
        (data, parity)
    }

    /// The time of a batch at the drive of parity, which has most to do: it reads the batch's rows in one sweep over the extent's
    /// tracks and writes them in another. On a track that has q of them they have all passed after q/(q+1) of a revolution.
    pub fn batch_ms(&self, updates: f64) -> f64 {
        let drive = &self.drive;
        let requests = self.batch_ios(updates).1 / 2.0;
        // It does not begin where a track does.
        let tracks = (self.extent / self.data_drives / drive.track + 1.0).min(requests.max(1.0));
        let on_track = requests / tracks;
        let passes = (drive.revolution * on_track / (on_track + 1.0)).max(on_track * drive.floor);
        drive.seek(drive.capacity) + tracks * (2.0 * passes + drive.read_settle + drive.write_settle)
    }

    /// An access to a random place in a pool, to write there.
    fn pool_access(&self) -> f64 {
        let rise = self.drive.write_settle - self.drive.read_settle;
        self.drive.seek(self.pool_span()) + rise + self.drive.revolution / 2.0
    }

    /// Bytes of each drive over which a pool lies.
    fn pool_span(&self) -> f64 {
        self.data / self.fill / self.data_drives
    }

    /// Blocks that a pool writes for each block that it is given.
    pub fn amplification(&self) -> f64 {
        greedy_amplification(1.0 - self.fill)
    }

    /// One update.
    pub fn update_ms(&self, layout: Layout) -> f64 {
        let drive = &self.drive;
        let near = drive.read_settle + drive.revolution / 2.0;
        match layout {
            // Read, and write when the place comes round again.
            Layout::InPlace => {
                let waits = both_pass((GROUP + 1.0) * BLOCK / drive.track);
                let transfer = 2.0 * self.run() * BLOCK / drive.track * drive.revolution;
                drive.seek(drive.capacity) + (1.0 + waits) * drive.revolution + transfer
            }
            Layout::Proximal => self.batch_ms(self.waiting()) / self.waiting(),
            // What is cleaned is read where it lies, block by block, all drives at once.
            Layout::LogStructured => {
                let copied = (self.amplification() - 1.0) * self.run();
                self.pool_access() / self.batch + copied * near / self.data_drives + self.transfer(self.amplification())
            }
            // Holes of a track are filled in one revolution, and their rows' parity read before.
            Layout::WriteAnywhere => {
                let holes = (1.0 - self.full) * drive.track / BLOCK * self.data_drives;
                let revolutions = (self.batch * self.run() / holes.max(1.0)).ceil();
                let seek = drive.seek(drive.capacity);
                (seek + revolutions * (2.0 * drive.revolution + drive.read_settle + drive.write_settle)) / self.batch
            }
        }
    }

    fn transfer(&self, times: f64) -> f64 {
        times * self.update / self.data_drives / self.drive.track * self.drive.revolution
    }

    /// Serial reads of everything, when it was written in order: each waits until its place comes round again, and for the slowest
    /// drive.
    pub fn fresh_scan_ms(&self) -> f64 {
        let drive = &self.drive;
        let bytes = READ.min(self.blocks()) * BLOCK;
        let per_drive = bytes / self.data_drives;
        let waits = 1.0 + self.data_drives / (self.data_drives + 1.0);
        let seeks = drive.seek(drive.capacity) * bytes / self.extent;
        let transfer = per_drive / drive.track * (drive.revolution + drive.read_settle);
        (transfer + waits * drive.revolution + seeks) * self.data / bytes
    }

    /// Blocks of a scan that do not follow the one before: those that moved, and what stayed behind them.
    fn pieces(&self) -> f64 {
        self.data / self.run() / BLOCK * self.moved * (2.0 - self.moved)
    }

    /// Serial reads of everything, when blocks were updated.
    pub fn scan_ms(&self, layout: Layout) -> f64 {
        let drive = &self.drive;
        let scattered = |span: f64| {
            let each = drive.seek(span) + drive.revolution / 2.0;
            (self.pieces() * each / self.data_drives).max(self.fresh_scan_ms())
        };
        match layout {
            Layout::InPlace | Layout::Proximal => self.fresh_scan_ms(),
            Layout::LogStructured => scattered(self.pool_span()),
            Layout::WriteAnywhere => scattered(drive.capacity),
        }
    }
}
