//! Making, replacing and deleting objects.

use super::{Answer, Bucket, Gateway, answer, name_of};
use crate::described::{self, ETAG, described, keep_checksums, put_checksums};
use crate::error::{of_body, of_store, precondition};
use crate::sums::{Sums, expected, hex};
use ashlar_env::Task;
use ashlar_env::ring::AlignedBuf;
use ashlar_objects::{Change, Condition, Error, Name, Put, Stat, Upload};
use bytes::Bytes;
use futures_core::Stream;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Result, s3_error};
use std::pin::Pin;

/// Largest body of one request, in bytes, as S3 has it.
const BODY_MAX: u64 = 5 << 30;
/// A body is gathered in segments of so many bytes: aligned for devices, in memory that is used again, and summed while they
/// are in the caches.
const SEGMENT: usize = 512 << 10;
/// The first segment of a body that does not say its length.
const ROOM: u64 = 128 << 10;
/// Keys of one request that deletes many, as S3 has it.
const DELETE_MAX: usize = 1000;

/// A body that was received: what was not yet written of it, and what it is.
pub(super) struct Received {
    pub(super) upload: Upload,
    pub(super) rest: Vec<Bytes>,
    pub(super) md5: [u8; 16],
    pub(super) sums: Checksum,
}

/// A piece of a body on its way in.
struct Gathered {
    /// Full segments.
    full: Vec<Bytes>,
    /// One that is not, and how much of it is.
    open: Option<(AlignedBuf, usize)>,
    /// Bytes of both.
    len: usize,
}

impl Gathered {
    fn new() -> Gathered {
        Gathered { full: Vec::new(), open: None, len: 0 }
    }

    /// Takes bytes in, up to the end of a segment of at most `room` bytes; gives the segment when it is full.
    fn take(&mut self, from: &mut Bytes, room: usize) -> Option<Bytes> {
        let (mut buffer, filled) = self.open.take().unwrap_or_else(|| (AlignedBuf::any(room.min(SEGMENT)), 0));
        let place = &mut buffer.as_mut()[filled..];
        let left = place.len();
        let part = from.split_to(from.len().min(left));
        place[..part.len()].copy_from_slice(&part);
        self.len += part.len();
        self.open = Some((buffer, filled + part.len()));
        if part.len() == left { self.close() } else { None }
    }

    /// Ends the open segment, and gives it, if there is one.
    fn close(&mut self) -> Option<Bytes> {
        let (buffer, filled) = self.open.take()?;
        let segment = buffer.freeze(filled);
        self.full.push(segment.clone());
        Some(segment)
    }
}

/// What a request asks of an object before it changes it.
#[derive(Default)]
pub(super) struct Demands {
    pub(super) matches: Option<ETagCondition>,
    pub(super) differs: Option<ETagCondition>,
    /// When it was last changed, to the second.
    pub(super) modified: Option<Timestamp>,
    /// Its length in bytes.
    pub(super) size: Option<i64>,
}

impl Demands {
    fn hold(&self, stat: &Stat) -> bool {
        let tag = described::etag(stat);
        let matches = match &self.matches {
            Some(ETagCondition::ETag(wanted)) => tag.strong_cmp(wanted),
            None | Some(ETagCondition::Any) => true,
        };
        let differs = match &self.differs {
            None => true,
            Some(ETagCondition::Any) => false,
            Some(ETagCondition::ETag(unwanted)) => !tag.weak_cmp(unwanted),
        };
        let modified = super::timestamp(std::time::Duration::from_secs(stat.modified.as_secs()));
        let same_time = self.modified.as_ref().is_none_or(|wanted| *wanted == modified);
        matches && differs && same_time && self.size.is_none_or(|wanted| wanted == super::int(stat.size))
    }
}

/// The outcome of a deletion: what is not there is deleted at once.
fn settled(outcome: Result<(), Error>) -> S3Result<()> {
    match outcome {
        Ok(()) | Err(Error::NotFound(_)) => Ok(()),
        Err(error) => Err(of_store(error)),
    }
}

impl Gateway {
    /// Length of a piece of a stream into a store, in bytes.
    pub(super) fn piece_of(&self, bucket: &Bucket) -> usize {
        bucket.store.limits().unit.clamp(1, self.piece) as usize
    }

    /// Takes a body in: all pieces but the last go into the store, where nobody sees them.
    pub(super) async fn receive(
        &self,
        bucket: &Bucket,
        body: Option<StreamingBlob>,
        length: Option<i64>,
        mut sums: Sums,
    ) -> S3Result<Received> {
        let length = match length.map(u64::try_from) {
            None => None,
            Some(Ok(length)) if length <= BODY_MAX.min(bucket.store.limits().object) => Some(length),
            Some(_) => return Err(too_large()),
        };
        let piece = self.piece_of(bucket);
        let mut upload = bucket.session.upload(bucket.store.clone());
        let mut received = 0u64;
        let mut gathered = Gathered::new();
        let mut body = body;
        while let Some(body) = &mut body {
            let mut next = match next(body).await {
                None => break,
                Some(Ok(next)) => next,
                Some(Err(error)) => return Err(of_body(&error)),
            };
            received += next.len() as u64;
            if received > length.unwrap_or(BODY_MAX) {
                return Err(
                    length.map_or_else(too_large, |_| s3_error!(IncompleteBody, "the body is longer than it says"))
                );
            }
            while !next.is_empty() {
                if gathered.len == piece {
                    upload.push(gathered.full).await.map_err(of_store)?;
                    gathered = Gathered::new();
                }
                // What is still to come, if that is known; else little at first.
                let more = match length {
                    Some(length) => length - (received - next.len() as u64),
                    None if upload.size() == 0 && gathered.len == 0 => ROOM,
                    None => SEGMENT as u64,
                };
                let room = more.min((piece - gathered.len) as u64) as usize;
                if let Some(segment) = gathered.take(&mut next, room) {
                    sums.update(&self.lanes, &segment).await;
                }
            }
        }
        if let Some(segment) = gathered.close() {
            sums.update(&self.lanes, &segment).await;
        }
        if length.is_some_and(|length| length != received) {
            return Err(s3_error!(IncompleteBody, "the body is shorter than it says"));
        }
        let (md5, sums) = sums.finish()?;
        Ok(Received { upload, rest: gathered.full, md5, sums })
    }

    pub(super) async fn put(&self, request: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        let announced = announced(&request.headers);
        let S3Request { mut input, trailing_headers, extensions, .. } = request;
        let bucket = self.bucket(&input.bucket).await?;
        if input.write_offset_bytes.is_some() {
            return Err(s3_error!(NotImplemented, "appending with x-amz-write-offset-bytes is not done here"));
        }
        not_done_here(input.tagging.as_ref())?;
        let name = name_of(&input.key)?;
        let mut attributes = described!(input)?;
        let demands =
            Demands { matches: input.if_match.take(), differs: input.if_none_match.take(), ..Demands::default() };
        let condition = self.condition(&bucket, &name, &demands).await?;
        let sums = Sums::new(expected!(input, announced, trailing_headers))?;
        let received = self.receive(&bucket, input.body.take(), input.content_length, sums).await?;
        attributes.insert(ETAG.into(), hex(&received.md5).into_bytes().into());
        keep_checksums(&mut attributes, &received.sums);
        let put = Put { change: Change { condition, ..Change::default() }, attributes, expected: None };
        let stat = received.upload.finish(&name, received.rest, put).await.map_err(of_store)?;
        drop(extensions);
        let mut output = PutObjectOutput { e_tag: Some(described::etag(&stat)), ..Default::default() };
        let sums = described::checksums(&stat);
        output.checksum_type = sums.checksum_type.clone();
        put_checksums!(output, sums);
        answer(output)
    }

    /// The state that an object must be in for a change.
    ///
    /// # Errors
    /// `PreconditionFailed` if it is in another; `NoSuchKey` if it is not there and was to be.
    pub(super) async fn condition(&self, bucket: &Bucket, name: &Name, demands: &Demands) -> S3Result<Condition> {
        match demands {
            Demands { matches: None, differs: None, modified: None, size: None } => return Ok(Condition::Any),
            Demands { matches: None, differs: Some(ETagCondition::Any), .. } => return Ok(Condition::Absent),
            _ => {}
        }
        let (store, object) = (bucket.store.clone(), name.clone());
        match self.on_env(async move { store.stat(&object).await }).await {
            // Only another tag was asked for, and what is not there has none.
            Err(Error::NotFound(_)) if demands.differs.is_some() && demands.matches.is_none() => Ok(Condition::Absent),
            Err(error) => Err(of_store(error)),
            Ok(stat) if demands.hold(&stat) => Ok(Condition::Version(stat.version)),
            Ok(_) => Err(precondition()),
        }
    }

    pub(super) async fn delete(&self, input: DeleteObjectInput) -> Answer<DeleteObjectOutput> {
        let bucket = self.bucket(&input.bucket).await?;
        not_versioned(input.version_id.as_deref())?;
        let demands = Demands {
            matches: input.if_match,
            differs: None,
            modified: input.if_match_last_modified_time,
            size: input.if_match_size,
        };
        if let Some(deletion) = self.begin_delete(&bucket, name_of(&input.key)?, &demands).await? {
            settled(deletion.await)?;
        }
        answer(DeleteObjectOutput::default())
    }

    /// Begins to delete an object, if there is one.
    async fn begin_delete(
        &self,
        bucket: &Bucket,
        name: Name,
        demands: &Demands,
    ) -> S3Result<Option<Task<Result<(), Error>>>> {
        let condition = match self.condition(bucket, &name, demands).await {
            Err(error) if *error.code() == S3ErrorCode::NoSuchKey => return Ok(None),
            condition => condition?,
        };
        let (store, change) = (bucket.store.clone(), Change { condition, ..Change::default() });
        Ok(Some(self.env.spawn(async move { store.delete(&name, change).await })))
    }

    pub(super) async fn delete_many(&self, input: DeleteObjectsInput) -> Answer<DeleteObjectsOutput> {
        let bucket = self.bucket(&input.bucket).await?;
        let Delete { objects, quiet } = input.delete;
        if objects.is_empty() || objects.len() > DELETE_MAX {
            return Err(s3_error!(MalformedXML, "a request deletes 1 to {} objects", DELETE_MAX));
        }
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        // All deletions together share what makes them durable.
        let mut under_way = Vec::new();
        for object in objects {
            let demands = Demands {
                matches: object.e_tag.map(ETagCondition::ETag),
                differs: None,
                modified: object.last_modified_time,
                size: object.size,
            };
            let outcome = match (not_versioned(object.version_id.as_deref()), name_of(&object.key)) {
                (Ok(()), Ok(name)) => self.begin_delete(&bucket, name, &demands).await,
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
            under_way.push((object.key, outcome));
        }
        for (key, outcome) in under_way {
            let outcome = match outcome {
                Ok(Some(deletion)) => settled(deletion.await),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            match outcome {
                Ok(()) if quiet == Some(true) => {}
                Ok(()) => deleted.push(DeletedObject { key: Some(key), ..Default::default() }),
                Err(error) => errors.push(s3s::dto::Error {
                    key: Some(key),
                    code: Some(error.code().as_str().into()),
                    message: error.message().map(Into::into),
                    version_id: None,
                }),
            }
        }
        answer(DeleteObjectsOutput { deleted: Some(deleted), errors: Some(errors), request_charged: None })
    }
}

/// The checksums that follow a body, as its headers announce them.
pub(super) fn announced(headers: &hyper::HeaderMap) -> Option<String> {
    Some(headers.get("x-amz-trailer")?.to_str().ok()?.to_string())
}

/// The next bytes of a body.
pub(super) async fn next(body: &mut StreamingBlob) -> Option<Result<Bytes, s3s::StdError>> {
    std::future::poll_fn(|context| Pin::new(&mut *body).poll_next(context)).await
}

fn too_large() -> s3s::S3Error {
    s3_error!(EntityTooLarge, "a request carries up to 5 GiB, and no more than the bucket's store takes for an object")
}

/// The version of every object.
pub(super) const NO_VERSION: &str = "null";

/// Objects have one version each.
pub(super) fn not_versioned(version: Option<&str>) -> S3Result<()> {
    match version {
        None | Some("" | NO_VERSION) => Ok(()),
        Some(_) => Err(s3_error!(NoSuchVersion, "objects have no versions here")),
    }
}

/// Tags are not kept, and not silently dropped.
pub(super) fn not_done_here(tagging: Option<&String>) -> S3Result<()> {
    match tagging {
        Some(tags) if !tags.is_empty() => Err(s3_error!(NotImplemented, "objects have no tags here; use metadata")),
        _ => Ok(()),
    }
}
