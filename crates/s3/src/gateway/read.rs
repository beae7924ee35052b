//! Reading objects: whole, in ranges, under conditions; a window at a time.

use super::write::not_versioned;
use super::{Answer, Bucket, Gateway, answer, int, name_of, page_len, timestamp};
use crate::budget::{Allowance, Budget};
use crate::described::{self, describe, put_checksums};
use crate::error::{of_store, precondition};
use crate::parts;
use ashlar_env::{Env, Task};
use ashlar_objects::{Condition, Error, Name, Object, Stat, Store};
use bytes::Bytes;
use futures_core::Stream;
use s3s::dto::*;
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{S3Error, S3Result, StdError, s3_error};
use std::collections::VecDeque;
use std::ops::Range as Span;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Bytes that are read at once while there is memory, and when others need it. A reader holds two windows.
const WINDOW: u64 = 1 << 20;
const WINDOW_SMALL: u64 = 128 << 10;
/// How often a read begins anew because the object was replaced.
const TRIES: usize = 8;

/// Conditions of a request that reads.
#[derive(Default)]
pub(super) struct Conditions {
    pub(super) matches: Option<ETagCondition>,
    pub(super) differs: Option<ETagCondition>,
    pub(super) changed_since: Option<Timestamp>,
    pub(super) same_since: Option<Timestamp>,
}

/// Takes the conditions from the fields of an input.
macro_rules! conditions {
    ($input:expr) => {
        Conditions {
            matches: $input.if_match.take(),
            differs: $input.if_none_match.take(),
            changed_since: $input.if_modified_since.take(),
            same_since: $input.if_unmodified_since.take(),
        }
    };
}

impl Conditions {
    /// Whether an object fulfils them, in the order of RFC 9110, section 13.2.2.
    ///
    /// # Errors
    /// `PreconditionFailed`, or `NotModified` for a reader who has it already.
    pub(super) fn check(&self, stat: &Stat) -> S3Result<()> {
        let tag = described::etag(stat);
        // HTTP knows whole seconds.
        let modified = timestamp(std::time::Duration::from_secs(stat.modified.as_secs()));
        match (&self.matches, &self.same_since) {
            (Some(ETagCondition::ETag(wanted)), _) if !tag.strong_cmp(wanted) => return Err(precondition()),
            (None, Some(since)) if modified > *since => return Err(precondition()),
            _ => {}
        }
        let has_it = match (&self.differs, &self.changed_since) {
            (Some(ETagCondition::Any), _) => true,
            (Some(ETagCondition::ETag(unwanted)), _) => tag.weak_cmp(unwanted),
            (None, Some(since)) => modified <= *since,
            (None, None) => false,
        };
        if has_it { Err(not_modified(stat)) } else { Ok(()) }
    }
}

fn not_modified(stat: &Stat) -> S3Error {
    let mut error = s3_error!(NotModified, "the object is as you have it");
    let mut headers = hyper::HeaderMap::new();
    if let Ok(tag) = described::etag(stat).to_http_header() {
        headers.insert("etag", tag);
    }
    error.set_headers(headers);
    error
}

/// A part of an object; nothing if the whole was asked for.
fn span(range: Option<Range>, part: Option<i32>, stat: &Stat) -> S3Result<Option<Span<u64>>> {
    match (range, part) {
        (None, None) => Ok(None),
        (Some(range), None) => match range.check(stat.size) {
            Ok(span) => Ok(Some(span)),
            Err(_) => Err(s3_error!(InvalidRange, "the object has {} bytes", stat.size)),
        },
        (None, Some(number)) => span_of_part(number, stat),
        (Some(_), Some(_)) => Err(s3_error!(InvalidRequest, "give Range or partNumber, not both")),
    }
}

/// Where a part of a finished upload lies; nothing for the one part of what did not come in parts.
fn span_of_part(number: i32, stat: &Stat) -> S3Result<Option<Span<u64>>> {
    let lengths = parts::lengths(stat);
    let in_parts = described::etag_text(stat).contains('-');
    let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    match (index, lengths) {
        (Some(index), Some(lengths)) if index < lengths.len() => {
            let (before, rest) = lengths.split_at(index);
            let start = before.iter().fold(0u64, |sum, length| sum.saturating_add(*length));
            let span = start..start.saturating_add(rest.first().copied().unwrap_or(0));
            match stat.size {
                0 => Ok(None),
                size if span.is_empty() || span.end > size => Err(s3_error!(InvalidRange, "part {} is empty", number)),
                _ => Ok(Some(span)),
            }
        }
        (Some(0), None) => Ok(None),
        (Some(_), None) if in_parts => {
            Err(s3_error!(NotImplemented, "the parts of this object are not kept apart; use ranges"))
        }
        _ => Err(s3_error!(InvalidPart, "the object has no part {}", number)),
    }
}

/// How many parts an object has that was uploaded in parts, for a client who asks for one of them.
fn parts_count(part: Option<i32>, stat: &Stat) -> Option<i32> {
    part.and_then(|_| parts::lengths(stat)).and_then(|lengths| i32::try_from(lengths.len()).ok())
}

fn content_range(span: &Span<u64>, size: u64) -> String {
    format!("bytes {}-{}/{size}", span.start, span.end - 1)
}

impl Gateway {
    pub(super) async fn stat_of(&self, bucket: &Bucket, name: &Name) -> S3Result<Stat> {
        let (store, name) = (bucket.store.clone(), name.clone());
        self.on_env(async move { store.stat(&name).await }).await.map_err(of_store)
    }

    pub(super) async fn get(&self, mut input: GetObjectInput) -> Answer<GetObjectOutput> {
        let bucket = self.bucket(&input.bucket).await?;
        not_versioned(input.version_id.as_deref())?;
        let name = name_of(&input.key)?;
        let conditions = conditions!(input);
        let window = if self.budget.is_ample() { WINDOW } else { WINDOW_SMALL };
        // The first bytes come with what the object is, if one can tell where they are.
        let first = match (input.range, input.part_number) {
            (None, None) => Some(0..window),
            (Some(Range::Int { first, last }), None) => {
                let end = last.unwrap_or(u64::MAX).saturating_add(1);
                Some(first..end.min(first.saturating_add(window)))
            }
            _ => None,
        };
        let mut held = self.budget.take(2 * window).await?;
        for _ in 0..TRIES {
            let (stat, data) = match &first {
                Some(first) => {
                    let (store, name, first) = (bucket.store.clone(), name.clone(), first.clone());
                    let read = self.on_env(async move { store.get(&name, first, Condition::Any).await });
                    let Object { stat, data } = read.await.map_err(of_store)?;
                    (stat, data)
                }
                None => (self.stat_of(&bucket, &name).await?, vec![]),
            };
            conditions.check(&stat)?;
            let part = span(input.range, input.part_number, &stat)?;
            let wanted = part.clone().unwrap_or(0..stat.size);
            let begun = ashlar_objects::len_of(&data);
            if wanted.end - wanted.start <= begun {
                // Nothing more will be read.
                Budget::shrink(&mut held, begun);
            }
            let reading = Reading {
                env: self.env.clone(),
                store: bucket.store.clone(),
                name: name.clone(),
                version: stat.version,
                ready: data.into(),
                next: wanted.start + begun,
                left: wanted.end - wanted.start,
                end: wanted.end,
                window,
                coming: None,
                _held: held.clone(),
            };
            let mut reading = if begun == 0 && wanted.end > wanted.start {
                match reading.begin().await {
                    // Replaced between the two calls.
                    Err(Error::Condition(_)) => continue,
                    begun => begun.map_err(of_store)?,
                }
            } else {
                reading
            };
            if reading.next < reading.end {
                // While the first window is sent.
                reading.ask();
            }
            let mut output = GetObjectOutput {
                accept_ranges: Some("bytes".into()),
                content_length: Some(int(wanted.end - wanted.start)),
                content_range: part.as_ref().map(|part| content_range(part, stat.size)),
                parts_count: parts_count(input.part_number, &stat),
                body: Some(StreamingBlob::new(reading)),
                ..Default::default()
            };
            describe!(output, &stat);
            if let Some(sums) = wanted_sums(input.checksum_mode.as_ref(), &stat, part.is_none(), input.part_number) {
                output.checksum_type = sums.checksum_type.clone();
                put_checksums!(output, sums);
            }
            return answer(output);
        }
        Err(s3_error!(SlowDown, "the object is replaced again and again; try again"))
    }

    pub(super) async fn head(&self, mut input: HeadObjectInput) -> Answer<HeadObjectOutput> {
        let bucket = self.bucket(&input.bucket).await?;
        not_versioned(input.version_id.as_deref())?;
        let stat = self.stat_of(&bucket, &name_of(&input.key)?).await?;
        conditions!(input).check(&stat)?;
        let part = span(input.range, input.part_number, &stat)?;
        let wanted = part.clone().unwrap_or(0..stat.size);
        let mut output = HeadObjectOutput {
            accept_ranges: Some("bytes".into()),
            content_length: Some(int(wanted.end - wanted.start)),
            content_range: part.as_ref().map(|part| content_range(part, stat.size)),
            parts_count: parts_count(input.part_number, &stat),
            ..Default::default()
        };
        describe!(output, &stat);
        if let Some(sums) = wanted_sums(input.checksum_mode.as_ref(), &stat, part.is_none(), input.part_number) {
            output.checksum_type = sums.checksum_type.clone();
            put_checksums!(output, sums);
        }
        answer(output)
    }

    pub(super) async fn attributes(&self, input: GetObjectAttributesInput) -> Answer<GetObjectAttributesOutput> {
        let bucket = self.bucket(&input.bucket).await?;
        not_versioned(input.version_id.as_deref())?;
        let stat = self.stat_of(&bucket, &name_of(&input.key)?).await?;
        // The library leaves several in one header together.
        let asked = input.object_attributes.iter().flat_map(|some| some.as_str().split(',')).map(str::trim);
        let wants = |what: &str| asked.clone().any(|one| one == what);
        let class = || described::text(&stat, "x-amz-storage-class").unwrap_or_else(|| "STANDARD".into());
        answer(GetObjectAttributesOutput {
            checksum: wants("Checksum").then(|| described::checksums(&stat)),
            e_tag: wants("ETag").then(|| described::etag(&stat)),
            object_parts: if wants("ObjectParts") {
                parts_page(&stat, input.part_number_marker, input.max_parts)?
            } else {
                None
            },
            object_size: wants("ObjectSize").then(|| int(stat.size)),
            storage_class: wants("StorageClass").then(|| class().into()),
            last_modified: Some(timestamp(stat.modified)),
            ..Default::default()
        })
    }
}

/// The checksums of what a client gets, if he asks for them and they are known: of the whole, or of a part by its number.
fn wanted_sums(mode: Option<&ChecksumMode>, stat: &Stat, whole: bool, part: Option<i32>) -> Option<Checksum> {
    mode.filter(|mode| mode.as_str() == ChecksumMode::ENABLED)?;
    if whole {
        return Some(described::checksums(stat));
    }
    parts::sums(stat)?.into_iter().nth(usize::try_from(part?).ok()?.checked_sub(1)?)
}

/// A page of an object's parts, if it was uploaded in parts.
fn parts_page(stat: &Stat, marker: Option<i32>, most: Option<i32>) -> S3Result<Option<GetObjectAttributesParts>> {
    let limit = page_len(most, "max-parts")?;
    let Some(lengths) = parts::lengths(stat) else { return Ok(None) };
    let sums = parts::sums(stat).unwrap_or_default();
    let marker = marker.unwrap_or(0).max(0);
    let part = |(number, length): (i32, &u64)| {
        let mut part = ObjectPart { part_number: Some(number), size: Some(int(*length)), ..Default::default() };
        if let Some(sum) = sums.get(number as usize - 1) {
            put_checksums!(part, sum.clone());
        }
        part
    };
    let page: Vec<ObjectPart> = (1..).zip(&lengths).skip(marker as usize).take(limit).map(part).collect();
    let last = page.last().and_then(|part| part.part_number).unwrap_or(marker);
    Ok(Some(GetObjectAttributesParts {
        is_truncated: Some((last as usize) < lengths.len()),
        max_parts: Some(limit as i32),
        part_number_marker: Some(marker),
        next_part_number_marker: Some(last),
        parts: Some(page),
        total_parts_count: i32::try_from(lengths.len()).ok(),
    }))
}

/// A body that is read while it is sent. The object may be replaced meanwhile: then the body ends with an error, and the
/// client sees it cut off.
pub(super) struct Reading {
    env: Env,
    store: Store,
    name: Name,
    version: u64,
    ready: VecDeque<Bytes>,
    /// Where the next window begins.
    next: u64,
    end: u64,
    /// Bytes that are still to be sent.
    left: u64,
    window: u64,
    coming: Option<Task<Result<Object, Error>>>,
    _held: Allowance,
}

impl Reading {
    /// Begins to read the next window.
    fn ask(&mut self) {
        let span = self.next..self.end.min(self.next + self.window);
        self.next = span.end;
        let (store, name, condition) = (self.store.clone(), self.name.clone(), Condition::Version(self.version));
        self.coming = Some(self.env.spawn(async move { store.get(&name, span, condition).await }));
    }

    /// Reads the first window before anything is answered.
    async fn begin(mut self) -> Result<Reading, Error> {
        self.ask();
        if let Some(coming) = self.coming.take() {
            self.ready.extend(coming.await?.data);
        }
        Ok(self)
    }
}

impl Stream for Reading {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                if piece.is_empty() {
                    continue;
                }
                self.left = self.left.saturating_sub(piece.len() as u64);
                return Poll::Ready(Some(Ok(piece)));
            }
            if self.left == 0 {
                return Poll::Ready(None);
            }
            let Some(coming) = &mut self.coming else {
                if self.next >= self.end {
                    return Poll::Ready(Some(Err("the object is shorter than it says".into())));
                }
                self.ask();
                continue;
            };
            match Pin::new(coming).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(object)) => {
                    self.coming = None;
                    self.ready.extend(object.data);
                    // The next window comes while this one is sent.
                    if self.next < self.end {
                        self.ask();
                    }
                }
                Poll::Ready(Err(error)) => {
                    (self.coming, self.left) = (None, 0);
                    return Poll::Ready(Some(Err(error.into())));
                }
            }
        }
    }
}

impl ByteStream for Reading {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact(self.left as usize)
    }
}
