//! `ashlar objects`.

use super::arguments::{ObjectsCommand, Place};
use super::{failure, first, with_ground};
use crate::output::{Failure, Output};
use crate::request::Done;
use ashlar_env::Env;
use ashlar_objects::{Change, Condition, Error, List, Name, Put, Session, Stat, Store, checksum_of_both, len_of};
use ashlar_units::Bytes as Size;
use bytes::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Bytes that are read or written at once, at most.
const PIECE_MAX: u64 = 8 << 20;
/// Objects on a page of a listing.
const PAGE: usize = 1000;

/// What an object is.
#[derive(Serialize, JsonSchema)]
struct Object {
    /// Its name.
    name: String,
    /// Bytes.
    size: u64,
    /// When it was changed last, in seconds since 1970.
    modified: u64,
    /// Differs from every version that an object of this name had before.
    version: u64,
    /// CRC-64/NVME of its contents, in hexadecimal digits.
    checksum: String,
    /// What else is said about it; values that are no text are shown with U+FFFD.
    attributes: std::collections::BTreeMap<String, String>,
}

impl From<Stat> for Object {
    fn from(stat: Stat) -> Object {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Object {
            name: text(stat.name.as_bytes()),
            size: stat.size,
            modified: stat.modified.as_secs(),
            version: stat.version,
            checksum: format!("{:016x}", stat.checksum),
            attributes: stat.attributes.into_iter().map(|(key, value)| (key, text(&value))).collect(),
        }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "name      {}", self.name)?;
        writeln!(f, "size      {} ({} bytes)", Size(self.size), self.size)?;
        let modified = i64::try_from(self.modified).ok().and_then(|at| OffsetDateTime::from_unix_timestamp(at).ok());
        let modified = modified.and_then(|at| at.format(&Rfc3339).ok());
        writeln!(f, "modified  {}", modified.as_deref().unwrap_or("at a time that no calendar has"))?;
        writeln!(f, "version   {}", self.version)?;
        writeln!(f, "checksum  {} (CRC-64/NVME)", self.checksum)?;
        self.attributes.iter().try_for_each(|(key, value)| writeln!(f, "{key}: {value}"))
    }
}

#[derive(Serialize, JsonSchema)]
struct Objects {
    objects: Vec<Object>,
    /// Whether there are more than were asked for.
    more: bool,
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.iter().try_for_each(|object| writeln!(f, "{:>14}  {}", object.size, object.name))?;
        if self.more { writeln!(f, "and more; --limit says how many to list") } else { Ok(()) }
    }
}

/// What a verification found.
#[derive(Serialize, JsonSchema)]
struct Verified {
    /// Objects read.
    objects: u64,
    /// Bytes read.
    bytes: u64,
    /// Objects that cannot be read or differ from their checksums.
    damaged: Vec<Damaged>,
}

#[derive(Serialize, JsonSchema)]
struct Damaged {
    /// Its name.
    name: String,
    /// Why.
    error: String,
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "verified {} objects, {}", self.objects, Size(self.bytes))?;
        self.damaged.iter().try_for_each(|Damaged { name, error }| writeln!(f, "damaged: {name}: {error}"))?;
        if self.damaged.is_empty() { writeln!(f, "everything is in order") } else { Ok(()) }
    }
}

/// A bar for bytes, or none.
fn bar(output: &Output, all: Option<u64>) -> ProgressBar {
    let bar = match all {
        _ if output.json => ProgressBar::hidden(),
        Some(all) => ProgressBar::new(all),
        None => ProgressBar::new_spinner(),
    };
    let template = match all {
        Some(_) => "{bar:40} {bytes} of {total_bytes}, {eta} left",
        None => "{bytes}, {bytes_per_sec}",
    };
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn interrupted() -> Failure {
    Failure::new("interrupted; nothing was changed")
}

fn check(stop: &AtomicBool) -> Result<(), Failure> {
    if stop.load(Ordering::Acquire) { Err(interrupted()) } else { Ok(()) }
}

fn key(place: &Place) -> Result<Name, Failure> {
    let name = Name::new(place.key.as_bytes().to_vec())
        .map_err(|error| Failure::new(format!("{error}; write BUCKET/KEY, as in {}/a.jpg", place.bucket)))?;
    if name.is_hidden() { Err(Failure::new("names that begin with NUL belong to the doors")) } else { Ok(name) }
}

/// `ashlar objects`.
pub fn objects(pool: Option<&Path>, command: ObjectsCommand, output: &Output) -> Result<ExitCode, Failure> {
    let schema = match command {
        ObjectsCommand::List { .. } => output.schema::<Objects>(),
        ObjectsCommand::Stat { .. } => output.schema::<Object>(),
        ObjectsCommand::Verify { .. } => output.schema::<Verified>(),
        _ => output.schema::<Done>(),
    };
    if let Some(code) = schema {
        return Ok(code);
    }
    let stop = crate::signals::on_signal()?;
    ashlar_env::real::small_pages();
    match command {
        ObjectsCommand::Put { mut to, file, new } => {
            if to.key.is_empty() || to.key.ends_with('/') {
                let name = file.file_name().and_then(|name| name.to_str()).filter(|name| *name != "-");
                let name =
                    name.ok_or_else(|| Failure::new("the file has no name to store it under: write BUCKET/KEY"))?;
                to.key.push_str(name);
            }
            let name = key(&to)?;
            let all = std::fs::metadata(&file).ok().filter(std::fs::Metadata::is_file).map(|data| data.len());
            let bar = bar(output, all);
            let shown = bar.clone();
            let bucket = to.bucket.clone();
            let stat = with_ground(pool, move |ground| async move {
                let store = ground.lasting(&bucket).await?;
                put(&ground.env, store, &name, file, new, &stop, &shown).await
            });
            bar.finish_and_clear();
            let stat = stat?;
            output.print(&Done { done: format!("stored {} bytes as {}/{}", stat.size, to.bucket, to.key) });
        }
        ObjectsCommand::Get { from, file } => {
            let name = key(&from)?;
            let bar = bar(output, Some(0));
            let shown = bar.clone();
            let (bucket, to) = (from.bucket.clone(), file.clone());
            let size = with_ground(pool, move |ground| async move {
                let store = ground.lasting(&bucket).await?;
                get(&ground.env, store, &name, to, &stop, &shown).await
            });
            bar.finish_and_clear();
            let done = format!("wrote {} bytes of {}/{} to {}", size?, from.bucket, from.key, file.display());
            match file.as_os_str() == "-" {
                true => output.say(done),
                false => output.print(&Done { done }),
            }
        }
        ObjectsCommand::List { of, limit } => {
            let found = with_ground(pool, move |ground| async move {
                let store = ground.lasting(&of.bucket).await?;
                let mut found = Objects { objects: Vec::new(), more: false };
                let mut pages = Pages::new(&store, &of.key);
                while let Some(stat) = pages.next().await? {
                    check(&stop)?;
                    if found.objects.len() == limit {
                        found.more = true;
                        break;
                    }
                    found.objects.push(stat.into());
                }
                Ok(found)
            })?;
            output.print(&found);
        }
        ObjectsCommand::Rm { what, recursive } => {
            let done = with_ground(pool, move |ground| async move {
                let store = ground.lasting(&what.bucket).await?;
                if !recursive {
                    store.delete(&key(&what)?, Change::default()).await.map_err(failure)?;
                    return Ok(format!("deleted {}/{}", what.bucket, what.key));
                }
                let mut deleted = 0u64;
                let mut pages = Pages::new(&store, &what.key);
                while let Some(stat) = pages.next().await? {
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    deleted += u64::from(ashlar_objects::forget(&store, &stat.name).await.map_err(failure)?);
                }
                store.sync().await.map_err(failure)?;
                Ok(format!("deleted {deleted} objects"))
            })?;
            output.print(&Done { done });
        }
        ObjectsCommand::Stat { what } => {
            let name = key(&what)?;
            let stat = with_ground(pool, move |ground| async move {
                ground.lasting(&what.bucket).await?.stat(&name).await.map_err(failure)
            })?;
            output.print(&Object::from(stat));
        }
        ObjectsCommand::Verify { of } => {
            let bar = bar(output, Some(0));
            let shown = bar.clone();
            let found = with_ground(pool, move |ground| async move {
                let store = ground.lasting(&of.bucket).await?;
                verify(&store, &of.key, &stop, &shown).await
            });
            bar.finish_and_clear();
            let found = found?;
            output.print(&found);
            return Ok(ExitCode::from(u8::from(!found.damaged.is_empty())));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Objects one after another.
struct Pages<'a> {
    store: &'a Store,
    prefix: Vec<u8>,
    from: Option<Bound<Name>>,
    page: std::vec::IntoIter<Stat>,
}

impl<'a> Pages<'a> {
    fn new(store: &'a Store, prefix: &str) -> Pages<'a> {
        Pages { store, prefix: prefix.into(), from: Some(Bound::Included(first())), page: vec![].into_iter() }
    }
    async fn next(&mut self) -> Result<Option<Stat>, Failure> {
        loop {
            if let Some(stat) = self.page.next() {
                return Ok(Some(stat));
            }
            let Some(from) = self.from.take() else { return Ok(None) };
            let request = List { prefix: self.prefix.clone(), from, limit: PAGE };
            let page = self.store.list(request).await.map_err(failure)?;
            let last = page.objects.last().filter(|_| page.more);
            self.from = last.map(|last| Bound::Excluded(last.name.clone()));
            self.page = page.objects.into_iter();
        }
    }
}

async fn put(
    env: &Env,
    store: Store,
    name: &Name,
    file: PathBuf,
    new: bool,
    stop: &AtomicBool,
    bar: &ProgressBar,
) -> Result<Stat, Failure> {
    let condition = if new { Condition::Absent } else { Condition::Any };
    let piece = store.limits().unit.clamp(1, PIECE_MAX);
    let told = |error: std::io::Error, file: &Path| Failure::new(format!("{}: {error}", file.display()));
    let shown = file.clone();
    let opened = env.unblock(move || -> std::io::Result<Box<dyn Read + Send>> {
        Ok(if file.as_os_str() == "-" { Box::new(std::io::stdin()) } else { Box::new(File::open(file)?) })
    });
    let mut input = opened.await.map_err(|error| told(error, &shown))?;
    let session = Session::new(env.clone());
    let mut upload = session.upload(store);
    loop {
        check(stop)?;
        let (data, back) = env
            .unblock(move || {
                let mut data = Vec::new();
                let read = input.by_ref().take(piece).read_to_end(&mut data);
                (read.map(|_| Bytes::from(data)), input)
            })
            .await;
        input = back;
        let data = data.map_err(|error| told(error, &shown))?;
        bar.inc(data.len() as u64);
        if (data.len() as u64) < piece {
            let put = Put { change: Change { condition, ..Change::default() }, ..Put::default() };
            let stat = upload.finish(name, vec![data], put).await;
            return stat.map_err(|error| match error {
                Error::Condition(_) => {
                    Failure::new(format!("there is an object {name} already; without --new it is replaced"))
                }
                error => failure(error),
            });
        }
        upload.push(vec![data]).await.map_err(failure)?;
    }
}

async fn get(
    env: &Env,
    store: Store,
    name: &Name,
    file: PathBuf,
    stop: &AtomicBool,
    bar: &ProgressBar,
) -> Result<u64, Failure> {
    let stat = store.stat(name).await.map_err(failure)?;
    bar.set_length(stat.size);
    let piece = store.limits().unit.clamp(1, PIECE_MAX);
    let to_stdout = file.as_os_str() == "-";
    // Beside the file, so that it is there as a whole or not at all.
    let draft = file.with_added_extension("part");
    let shown = draft.clone();
    let told = |error: std::io::Error| Failure::new(format!("{}: {error}", shown.display()));
    let output: Box<dyn Write + Send> = match to_stdout {
        true => Box::new(std::io::stdout()),
        false => Box::new(File::create(&draft).map_err(told)?),
    };
    let outcome = copy(env, &store, name, &stat, output, piece, stop, bar).await;
    if to_stdout {
        outcome?;
    } else if let Err(failure) = outcome {
        let _ = std::fs::remove_file(&draft);
        return Err(failure);
    } else {
        std::fs::rename(&draft, &file).map_err(told)?;
    }
    Ok(stat.size)
}

#[allow(clippy::too_many_arguments, reason = "one caller")]
async fn copy(
    env: &Env,
    store: &Store,
    name: &Name,
    stat: &Stat,
    mut output: Box<dyn Write + Send>,
    piece: u64,
    stop: &AtomicBool,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let mut at = 0;
    while at < stat.size {
        check(stop)?;
        let read = store.get(name, at..at + piece, Condition::Version(stat.version)).await;
        let object = read.map_err(|error| match error {
            Error::Condition(_) => Failure::new(format!("{name} was replaced while it was read; try again")),
            error => failure(error),
        })?;
        at += len_of(&object.data);
        bar.set_position(at);
        let (written, back) =
            env.unblock(move || (object.data.iter().try_for_each(|piece| output.write_all(piece)), output)).await;
        output = back;
        written.map_err(|error| Failure::new(format!("cannot write: {error}")))?;
    }
    output.flush().map_err(|error| Failure::new(format!("cannot write: {error}")))
}

/// Reads everything. The bar's end grows as objects are found.
async fn verify(store: &Store, prefix: &str, stop: &AtomicBool, bar: &ProgressBar) -> Result<Verified, Failure> {
    bar.set_length(store.usage().used);
    let mut verified = Verified { objects: 0, bytes: 0, damaged: Vec::new() };
    let mut pages = Pages::new(store, prefix);
    while let Some(stat) = pages.next().await? {
        check(stop)?;
        verified.objects += 1;
        match verify_one(store, &stat, bar).await {
            Ok(bytes) => verified.bytes += bytes,
            // It was deleted or replaced meanwhile: what came is no worse.
            Err(Error::NotFound(_) | Error::Condition(_)) => {}
            Err(error) => verified.damaged.push(Damaged { name: stat.name.to_string(), error: error.to_string() }),
        }
    }
    Ok(verified)
}

async fn verify_one(store: &Store, stat: &Stat, bar: &ProgressBar) -> Result<u64, Error> {
    let piece = store.limits().unit.clamp(1, PIECE_MAX);
    let (mut sum, mut at) = (ashlar_objects::checksum(&[]), 0);
    while at < stat.size {
        let object = store.get(&stat.name, at..at + piece, Condition::Version(stat.version)).await?;
        let len = len_of(&object.data);
        if len == 0 {
            return Err(ashlar_block::Error::corrupt(format!("it ends after {at} of {} bytes", stat.size)).into());
        }
        sum = checksum_of_both(sum, ashlar_objects::checksum(&object.data), len);
        at += len;
        bar.inc(len);
    }
    if sum != stat.checksum {
        let message = format!("its checksum is {sum:016x} and should be {:016x}", stat.checksum);
        return Err(ashlar_block::Error::corrupt(message).into());
    }
    Ok(at)
}
