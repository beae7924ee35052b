//! Copies on the server's side.

use super::read::Conditions;
use super::write::{Received, not_done_here, not_versioned};
use super::{Answer, Bucket, Gateway, answer, name_of, timestamp};
use crate::described::{self, ETAG, described, keep_checksums, put_checksums};
use crate::error::{of_store, precondition};
use crate::sums::{Expected, Sums, hex};
use ashlar_objects::{Change, Condition, Error, Name, Put, Stat, len_of};
use s3s::dto::*;
use s3s::{S3Result, s3_error};
use std::ops::Range as Span;
use std::sync::Arc;

/// Takes the conditions on the source of a copy from the fields of an input.
macro_rules! source_conditions {
    ($input:expr) => {
        Conditions {
            matches: $input.copy_source_if_match.take(),
            differs: $input.copy_source_if_none_match.take(),
            changed_since: $input.copy_source_if_modified_since.take(),
            same_since: $input.copy_source_if_unmodified_since.take(),
        }
    };
}

/// The object that is copied.
pub(super) struct Source {
    bucket: Arc<Bucket>,
    name: Name,
    stat: Stat,
}

impl Gateway {
    async fn source(&self, source: &CopySource, conditions: &Conditions) -> S3Result<(Source, String)> {
        let CopySource::Bucket { bucket: of, key, version_id } = source else {
            return Err(s3_error!(NotImplemented, "copy from BUCKET/KEY; there are no access points here"));
        };
        not_versioned(version_id.as_deref())?;
        let (bucket, name) = (self.bucket(of).await?, name_of(key)?);
        let stat = self.stat_of(&bucket, &name).await?;
        // Who copies has nothing yet: what would be "not modified" for a reader is a condition that failed.
        conditions.check(&stat).map_err(|_| precondition())?;
        Ok((Source { bucket, name, stat }, of.to_string()))
    }

    /// Reads part of the source into a stream to `bucket`.
    async fn transfer(&self, source: &Source, span: Span<u64>, bucket: &Bucket, mut sums: Sums) -> S3Result<Received> {
        let piece = self.piece_of(bucket) as u64;
        let _held = self.budget.take(piece.min(span.end - span.start)).await?;
        let mut upload = bucket.session.upload(bucket.store.clone());
        let mut next = span.start;
        let mut rest = Vec::new();
        while next < span.end {
            if !rest.is_empty() {
                upload.push(std::mem::take(&mut rest)).await.map_err(of_store)?;
            }
            let (store, name) = (source.bucket.store.clone(), source.name.clone());
            let (window, condition) = (next..span.end.min(next + piece), Condition::Version(source.stat.version));
            let read = self.on_env(async move { store.get(&name, window, condition).await }).await;
            let object = read.map_err(|error| match error {
                Error::Condition(_) => s3_error!(SlowDown, "the source was replaced while it was copied; try again"),
                error => of_store(error),
            })?;
            next += len_of(&object.data);
            for data in &object.data {
                sums.update(&self.lanes, data).await;
            }
            rest = object.data;
        }
        let (md5, sums) = sums.finish()?;
        Ok(Received { upload, rest, md5, sums })
    }

    pub(super) async fn copy(&self, mut input: CopyObjectInput) -> Answer<CopyObjectOutput> {
        let conditions = source_conditions!(input);
        let (source, of) = self.source(&input.copy_source, &conditions).await?;
        let bucket = self.bucket(&input.bucket).await?;
        let name = name_of(&input.key)?;
        not_done_here(input.tagging.as_ref())?;
        let replaces = match input.metadata_directive.as_ref().map(MetadataDirective::as_str) {
            None | Some(MetadataDirective::COPY) => false,
            Some(MetadataDirective::REPLACE) => true,
            Some(other) => return Err(s3_error!(InvalidArgument, "{other:?} is no metadata directive")),
        };
        let onto_itself = of == input.bucket && source.name == name;
        let algorithm = input.checksum_algorithm.take();
        if onto_itself && !replaces && algorithm.is_none() && input.storage_class.is_none() {
            return Err(s3_error!(
                InvalidRequest,
                "a copy of an object onto itself has to change what is said about it"
            ));
        }
        let mut attributes = if replaces { described!(input)? } else { source.stat.attributes.clone() };
        let stat = if onto_itself && algorithm.is_none() {
            // The bytes stay, and with them tag and checksums.
            described::keep_contents(&mut attributes, &source.stat);
            let condition = Condition::Version(source.stat.version);
            let (store, change) = (bucket.store.clone(), Change { condition, ..Change::default() });
            self.on_env(async move { store.set_attributes(&name, attributes, change).await }).await.map_err(of_store)?
        } else {
            let sums = Sums::new(Expected { algorithm, ..Expected::default() })?;
            let received = self.transfer(&source, 0..source.stat.size, &bucket, sums).await?;
            described::forget_contents(&mut attributes);
            attributes.insert(ETAG.into(), hex(&received.md5).into_bytes().into());
            keep_checksums(&mut attributes, &received.sums);
            let put = Put { attributes, ..Put::default() };
            received.upload.finish(&name, received.rest, put).await.map_err(of_store)?
        };
        let mut result = CopyObjectResult {
            e_tag: Some(described::etag(&stat)),
            last_modified: Some(timestamp(stat.modified)),
            ..Default::default()
        };
        let sums = described::checksums(&stat);
        result.checksum_type = sums.checksum_type.clone();
        put_checksums!(result, sums);
        answer(CopyObjectOutput { copy_object_result: Some(result), ..Default::default() })
    }

    pub(super) async fn copy_part(&self, mut input: UploadPartCopyInput) -> Answer<UploadPartCopyOutput> {
        let conditions = source_conditions!(input);
        let (source, _) = self.source(&input.copy_source, &conditions).await?;
        let size = source.stat.size;
        let span = match &input.copy_source_range {
            None => 0..size,
            Some(text) => {
                let wrong =
                    || s3_error!(InvalidArgument, "x-amz-copy-source-range is no range of the source's {} bytes", size);
                match Range::parse(text) {
                    Ok(Range::Int { first, last: Some(last) }) if first <= last && last < size => first..last + 1,
                    Ok(Range::Int { .. }) => {
                        return Err(s3_error!(InvalidRange, "the source has {} bytes", size));
                    }
                    _ => return Err(wrong()),
                }
            }
        };
        let bucket = self.bucket(&input.bucket).await?;
        let upload = self.upload(&bucket, &input.key, &input.upload_id).await?;
        let sums = upload.sums(Expected::default())?;
        let received = self.transfer(&source, span, &bucket, sums).await?;
        let stat = self.keep_part(&bucket, &upload, input.part_number, received).await?;
        let mut result = CopyPartResult {
            e_tag: Some(described::etag(&stat)),
            last_modified: Some(timestamp(stat.modified)),
            ..Default::default()
        };
        put_checksums!(result, described::checksums(&stat));
        answer(UploadPartCopyOutput { copy_part_result: Some(result), ..Default::default() })
    }
}
