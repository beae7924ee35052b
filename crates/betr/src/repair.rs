//! Mending what follows from the rest, after keys were lost with a node of the index.

use crate::audit::Fix;
use crate::keys::{self, Place, RANGE_BLOCKS};
use crate::open::{read_counter, read_format, read_root};
use crate::record::{Entry, Record, Stored};
use crate::{Betr, Options};
use ashlar_inodes::{FIXES_PER_COMMIT, Lost, NUMBER_LOT, ROUNDS_MAX, Told, forget_lost, number_value};
use ashlar_pool::{Txn, Volume};
use ashlar_units::Lba;
use ashlar_vfs::{Result, Time};

/// Files that are named of those that lost small changes; the rest is counted.
const TAKEN_BACK_MAX: usize = 1000;

impl Betr {
    /// Forgets `lost` keys, and mends what follows from the rest: the copy of the format, the counter, the root directory (its
    /// owner and mode are lost), sums, links, roots of zones that names lead to. What no name leads to any more is brought to
    /// `lost+found`. Nobody may have the file system open. Gives sentences for people.
    ///
    /// # Errors
    /// Where both copies of the format are lost, nothing can be mended.
    pub async fn repair(volume: &Volume, lost: &[Lost]) -> Result<Vec<String>> {
        let mut told = Told::default();
        let forgotten = forget_lost(volume, lost, &mut told).await?;
        Betr::mend_format(volume, &mut told).await?;
        let mut txn = Txn::new();
        if read_counter(volume).await.is_err() {
            let next = Betr::numbers_in_use(volume).await?;
            volume.put(&mut txn, keys::NEXT_NUMBER, number_value(next));
            told.say(format!("numbers go on from {next}"));
        }
        if read_root(volume).await.is_err() {
            let root = Entry::nameless(Record::root(Time::from(volume.pool().env().wall()), 0, 0));
            volume.put(&mut txn, &keys::of(keys::META, &Place::root_of(keys::ROOT_ZONE)), root.encode());
            told.say("made the root directory anew, owned by root");
        }
        volume.commit(txn).await?;
        Betr::tell_taken_back(volume, &forgotten, &mut told).await?;
        Betr::mend_findings(volume, &mut told).await?;
        volume.pool().sync_all().await?;
        Ok(told.finish())
    }

    /// Blocks below pieces that are lost are as they were before these. Nobody knows of which blocks there were any.
    async fn tell_taken_back(volume: &Volume, forgotten: &[Lost], told: &mut Told) -> Result<()> {
        if forgotten.is_empty() {
            return Ok(());
        }
        let betr = Betr::open(volume.clone(), Options { read_only: true, ..Options::default() }).await?;
        let (paths, more) = betr.overlaid_in(forgotten, TAKEN_BACK_MAX).await?;
        for path in paths {
            told.say(format!("{path}: small changes may be lost, and bytes be as they were before"));
        }
        if more > 0 {
            told.say(format!("{more} more files: small changes may be lost, and bytes be as they were before"));
        }
        Ok(())
    }

    async fn mend_format(volume: &Volume, told: &mut Told) -> Result<()> {
        let good = read_format(volume).await.ok().flatten();
        let good = good.ok_or_else(|| keys::damaged("both copies of the format are lost"))?;
        for key in [keys::FORMAT, keys::FORMAT_COPY] {
            if !matches!(volume.get(key).await, Ok(Some(_))) {
                let mut txn = Txn::new();
                volume.put(&mut txn, key, good.clone());
                volume.commit(txn).await?;
                told.say("wrote the other copy of the format anew");
            }
        }
        Ok(())
    }

    /// A number above all that are in use: of inodes and zones in keys and values, and of block ranges, with what is stored there.
    async fn numbers_in_use(volume: &Volume) -> Result<u64> {
        let mut most = keys::ROOT_ZONE;
        for prefix in [keys::META, keys::DATA, keys::WAY, keys::ORPHAN, keys::FILLING, keys::BUILDING] {
            let (mut low, end) = (vec![prefix], [prefix + 1]);
            loop {
                let page = volume.page(&low, Some(&end), ashlar_inodes::PAGE).await?;
                for (key, value) in &page.entries {
                    let ino = match prefix {
                        keys::META => Entry::decode(value).ok().map(|entry| most_of(&entry.stored)),
                        keys::DATA => keys::last_number(&key[..key.len().saturating_sub(8)]).ok(),
                        keys::BUILDING => None,
                        _ => keys::last_number(key).ok(),
                    };
                    let place = match prefix {
                        keys::META | keys::DATA | keys::BUILDING => Place::first_in(&key[1..]),
                        _ => None,
                    };
                    most = most.max(ino.unwrap_or(0)).max(place.map_or(0, |place| place.zone()));
                }
                match page.next {
                    Some(next) => low = next.to_vec(),
                    None => break,
                }
            }
        }
        let end = keys::range_base(keys::NUMBER_MAX); // nothing has the last one
        // Ranges to go on behind where the block map cannot be read: more each time.
        let (mut next, mut step) = (most, 1u64);
        while next < keys::NUMBER_MAX {
            match volume.seek(keys::range_base(next), end, false).await {
                Ok(Some(Lba(stored))) => (most, next) = (stored / RANGE_BLOCKS, stored / RANGE_BLOCKS + 1),
                Ok(None) => break,
                Err(error) if error.is_damage() => (next, step) = (next.saturating_add(step), step.saturating_mul(2)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok((most + 1).next_multiple_of(NUMBER_LOT))
    }

    /// Audits, and does what the audit finds to be done, until there is nothing more.
    async fn mend_findings(volume: &Volume, told: &mut Told) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            let betr = Betr::open(volume.clone(), Options { read_only: true, ..Options::default() }).await?;
            let (_, findings) = betr.audit_by(betr.seen_per_pass()).await?;
            // What a fix gives its place again is no stray.
            if findings.fixes.is_empty() {
                if findings.strays.len() == 0 {
                    break;
                }
                let betr = Betr::open(volume.clone(), Options::default()).await?;
                told.brought += betr.salvage(findings.strays).await?;
                betr.close().await?;
                continue;
            }
            told.mended += findings.fixes.len();
            let mut fixes = findings.fixes.into_iter().peekable();
            while fixes.peek().is_some() {
                let mut txn = Txn::new().deleting();
                fixes.by_ref().take(FIXES_PER_COMMIT).for_each(|fix: Fix| fix.apply(volume, &mut txn));
                volume.commit(txn).await?;
            }
        }
        Ok(())
    }
}

/// The largest number that an entry names.
fn most_of(stored: &Stored) -> u64 {
    match stored {
        Stored::Record(record) => record.ino.max(record.contents.range).max(record.parent),
        Stored::Zone { zone, ino, .. } => (*zone).max(*ino),
    }
}
