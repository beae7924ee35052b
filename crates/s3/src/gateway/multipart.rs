//! Uploads in parts. An upload is an object without bytes, and its parts are objects; see [`names`](crate::names).
//! Completing composes the upload itself with its parts, so that it ends in the same step in which the object appears.
//!
//! More than 255 parts are first made fewer, in groups. A crash in between leaves an upload with groups in place of parts:
//! it can only be aborted.

use super::list::Encoding;
use super::whole::{checksum_of, etag_of};
use super::write::{Demands, Received, announced, not_done_here};
use super::{Answer, Bucket, Gateway, answer, int, name_of};
use crate::described::{self, ETAG, described, keep_checksums, put_checksums, take_checksums};
use crate::error::of_store;
use crate::names::{PART_MAX, PARTS, UploadId, part_id, record_id, records_under};
use crate::parts::{UPLOAD, keep_parts};
use crate::sums::{Expected, Sums, expected, hex, place_of, value_at};
use ashlar_objects::{Attributes, Change, Durability, Error, List, Name, PARTS_MAX, Put, Stat, Store, forget};
use bytes::Bytes;
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result, s3_error};
use std::collections::BTreeSet;
use std::ops::Bound;

/// Least size of a part that is not the last, in bytes, as S3 has it.
const PART_MIN: u64 = 5 << 20;
/// Attributes of an upload that its object does not have.
pub(super) const KEY: &str = "upload-key";
pub(super) const ALGORITHM: &str = "upload-checksum";
pub(super) const KIND: &str = "upload-checksum-type";

/// An upload that is under way.
pub(super) struct Upload {
    pub(super) id: UploadId,
    record: Stat,
}

impl Upload {
    pub(super) fn text(&self, key: &str) -> Option<String> {
        described::text(&self.record, key)
    }
    /// The checksum that parts have, by its place.
    fn place(&self) -> Option<usize> {
        place_of(&self.text(ALGORITHM)?)
    }
    /// Whether the checksum is that of the whole object, and not one of the parts' checksums.
    pub(super) fn is_of_whole(&self) -> bool {
        self.text(KIND).as_deref() == Some(ChecksumType::FULL_OBJECT)
    }
    /// What a part's bytes are added up to.
    pub(super) fn sums(&self, mut expected: Expected) -> S3Result<Sums> {
        if expected.algorithm.is_none() {
            expected.algorithm = self.text(ALGORITHM).map(Into::into);
        }
        Sums::new(expected)
    }
}

fn no_upload() -> S3Error {
    s3_error!(NoSuchUpload, "there is no such upload; it may have been completed or aborted")
}

impl Gateway {
    pub(super) async fn create_upload(
        &self,
        mut input: CreateMultipartUploadInput,
    ) -> Answer<CreateMultipartUploadOutput> {
        let bucket = self.bucket(&input.bucket).await?;
        name_of(&input.key)?;
        not_done_here(input.tagging.as_ref())?;
        let mut attributes = described!(input)?;
        attributes.insert(KEY.into(), input.key.clone().into_bytes().into());
        let mut kind = None;
        if let Some(algorithm) = &input.checksum_algorithm {
            let name = algorithm.as_str();
            let place =
                place_of(name).ok_or_else(|| s3_error!(InvalidRequest, "{name:?} is no checksum known here"))?;
            let wanted = input.checksum_type.as_ref().map(ChecksumType::as_str);
            let chosen = match (place, wanted) {
                (0 | 1, None | Some(ChecksumType::COMPOSITE)) => ChecksumType::COMPOSITE,
                (3 | 4, None | Some(ChecksumType::COMPOSITE)) => ChecksumType::COMPOSITE,
                (0..=2, Some(ChecksumType::FULL_OBJECT)) | (2, None) => ChecksumType::FULL_OBJECT,
                _ => return Err(s3_error!(InvalidRequest, "{name} and that checksum type do not go together")),
            };
            kind = Some(ChecksumType::from_static(chosen));
            attributes.insert(ALGORITHM.into(), name.to_ascii_uppercase().into_bytes().into());
            attributes.insert(KIND.into(), Bytes::from_static(chosen.as_bytes()));
        }
        let id = UploadId::new(self.env.random(), self.env.random());
        let (store, name) = (bucket.store.clone(), id.record(&input.key));
        let put = Put { attributes, ..Put::default() };
        self.on_env(async move { store.put(&name, vec![], put).await }).await.map_err(of_store)?;
        answer(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id.as_str().into()),
            checksum_algorithm: input.checksum_algorithm,
            checksum_type: kind,
            ..Default::default()
        })
    }

    /// The upload that a client names.
    pub(super) async fn upload(&self, bucket: &Bucket, key: &str, id: &str) -> S3Result<Upload> {
        let id = UploadId::parse(id).ok_or_else(no_upload)?;
        let (store, name) = (bucket.store.clone(), id.record(key));
        let record = self.on_env(async move { store.stat(&name).await }).await.map_err(|error| match error {
            Error::NotFound(_) => no_upload(),
            error => of_store(error),
        })?;
        let upload = Upload { id, record };
        if upload.text(KEY).as_deref() == Some(key) { Ok(upload) } else { Err(no_upload()) }
    }

    pub(super) async fn put_part(&self, request: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
        let announced = announced(&request.headers);
        let S3Request { mut input, trailing_headers, extensions, .. } = request;
        let bucket = self.bucket(&input.bucket).await?;
        let upload = self.upload(&bucket, &input.key, &input.upload_id).await?;
        let sums = upload.sums(expected!(input, announced, trailing_headers))?;
        let received = self.receive(&bucket, input.body.take(), input.content_length, sums).await?;
        let stat = self.keep_part(&bucket, &upload, input.part_number, received).await?;
        drop(extensions);
        let mut output = UploadPartOutput { e_tag: Some(described::etag(&stat)), ..Default::default() };
        put_checksums!(output, described::checksums(&stat));
        answer(output)
    }

    /// Makes what was received a part.
    pub(super) async fn keep_part(
        &self,
        bucket: &Bucket,
        upload: &Upload,
        number: i32,
        received: Received,
    ) -> S3Result<Stat> {
        if !(1..=PART_MAX).contains(&number) {
            return Err(s3_error!(InvalidArgument, "parts are numbered from 1 to {}", PART_MAX));
        }
        let mut attributes = Attributes::new();
        attributes.insert(ETAG.into(), hex(&received.md5).into_bytes().into());
        keep_checksums(&mut attributes, &received.sums);
        let name = upload.id.part(number);
        let put = Put { attributes, ..Put::default() };
        let stat = received.upload.finish(&name, received.rest, put).await.map_err(of_store)?;
        // The upload may have ended meanwhile, and nobody would ever delete the part.
        let (store, record) = (bucket.store.clone(), upload.record.name.clone());
        let still = self
            .on_env(async move {
                match store.stat(&record).await {
                    Err(Error::NotFound(_)) => forget(&store, &name).await.map(|_| false),
                    found => found.map(|_| true),
                }
            })
            .await;
        if still.map_err(of_store)? { Ok(stat) } else { Err(no_upload()) }
    }

    pub(super) async fn abort_upload(&self, input: AbortMultipartUploadInput) -> Answer<AbortMultipartUploadOutput> {
        let bucket = self.bucket(&input.bucket).await?;
        let upload = self.upload(&bucket, &input.key, &input.upload_id).await?;
        let store = bucket.store.clone();
        let aborted = self.on_env(async move {
            // First the upload: who comes with a part finds none.
            store.delete(&upload.record.name, Change::default()).await?;
            forget_parts(&store, &upload.id.parts()).await?;
            store.sync().await
        });
        match aborted.await {
            Ok(()) => answer(AbortMultipartUploadOutput::default()),
            Err(Error::NotFound(_)) => Err(no_upload()),
            Err(error) => Err(of_store(error)),
        }
    }

    pub(super) async fn complete_upload(
        &self,
        mut input: CompleteMultipartUploadInput,
    ) -> Answer<CompleteMultipartUploadOutput> {
        let bucket = self.bucket(&input.bucket).await?;
        let name = name_of(&input.key)?;
        let upload = match self.upload(&bucket, &input.key, &input.upload_id).await {
            Err(error) if *error.code() == S3ErrorCode::NoSuchUpload => {
                // A client that did not hear the answer asks again.
                let stat = self.stat_of(&bucket, &name).await.ok();
                let stat = stat.filter(|stat| described::text(stat, UPLOAD).as_ref() == Some(&input.upload_id));
                return stat.map_or(Err(error), |stat| completion(input, &stat));
            }
            upload => upload?,
        };
        let demands =
            Demands { matches: input.if_match.take(), differs: input.if_none_match.take(), ..Demands::default() };
        let condition = self.condition(&bucket, &name, &demands).await?;
        let named = input.multipart_upload.take().and_then(|upload| upload.parts).unwrap_or_default();
        let parts = self.chosen_parts(&bucket, &upload, &named).await?;
        let size: u64 = parts.iter().map(|part| part.size).sum();
        if input.mpu_object_size.is_some_and(|said| said != int(size)) {
            return Err(s3_error!(InvalidRequest, "the parts have {} bytes together", size));
        }
        let mut attributes = upload.record.attributes.clone();
        [KEY, ALGORITHM, KIND].into_iter().for_each(|key| drop(attributes.remove(key)));
        attributes.insert(ETAG.into(), etag_of(&parts)?.into_bytes().into());
        attributes.insert(UPLOAD.into(), upload.id.as_str().to_string().into_bytes().into());
        keep_parts(&mut attributes, &parts, upload.place());
        if let Some(place) = upload.place() {
            let sums = checksum_of(&upload, place, &parts)?;
            let said = take_checksums!(input);
            if value_at(&said, place).is_some_and(|said| Some(said) != value_at(&sums, place)) {
                return Err(s3_error!(BadDigest, "the checksum of the whole is not what you specified"));
            }
            keep_checksums(&mut attributes, &sums);
        }
        let put = Put { change: Change { condition, ..Change::default() }, attributes, expected: None };
        let (store, record, id) = (bucket.store.clone(), upload.record.name.clone(), upload.id.clone());
        let names: Vec<Name> = parts.into_iter().map(|part| part.name).collect();
        let completed = self.on_env(async move {
            let stat = compose(&store, &id, record, names, &name, put).await?;
            // Parts that were sent and not named.
            forget_parts(&store, &id.parts()).await?;
            Ok(stat)
        });
        let stat = completed.await.map_err(|error| match error {
            Error::NotFound(name) if name.is_hidden() => no_upload(),
            error => of_store(error),
        })?;
        completion(input, &stat)
    }

    /// The parts that a client names, as they are in the store.
    async fn chosen_parts(&self, bucket: &Bucket, upload: &Upload, named: &[CompletedPart]) -> S3Result<Vec<Stat>> {
        if named.is_empty() {
            return Err(s3_error!(MalformedXML, "an upload is completed from at least one part"));
        }
        let number_of = |part: &CompletedPart| part.part_number.unwrap_or(0);
        let unordered = named.windows(2).find(|pair| number_of(&pair[1]) <= number_of(&pair[0]));
        if let Some(pair) = unordered {
            let (first, second) = (number_of(&pair[0]), number_of(&pair[1]));
            return Err(s3_error!(InvalidPartOrder, "part {} comes after part {}", second, first));
        }
        let there = self.all_parts(bucket, upload).await?;
        let mut chosen: Vec<Stat> = Vec::with_capacity(named.len());
        for (index, part) in named.iter().enumerate() {
            let number = number_of(part);
            let invalid = || s3_error!(InvalidPart, "part {} is not there, or its tag or checksum is another", number);
            let at = there.binary_search_by_key(&number, |(number, _)| *number).map_err(|_| invalid())?;
            let stat = there.get(at).map(|(_, stat)| stat.clone()).ok_or_else(invalid)?;
            let same_tag = part.e_tag.as_ref().is_some_and(|tag| tag.value() == described::etag_text(&stat));
            let sums = described::checksums(&stat);
            let said = [
                (&part.checksum_crc32, &sums.checksum_crc32),
                (&part.checksum_crc32c, &sums.checksum_crc32c),
                (&part.checksum_crc64nvme, &sums.checksum_crc64nvme),
                (&part.checksum_sha1, &sums.checksum_sha1),
                (&part.checksum_sha256, &sums.checksum_sha256),
            ];
            let same_sums = said.into_iter().all(|(said, found)| said.is_none() || said == found);
            if !same_tag || !same_sums {
                return Err(invalid());
            }
            if index + 1 < named.len() && stat.size < PART_MIN {
                return Err(s3_error!(
                    EntityTooSmall,
                    "part {} has {} bytes; all but the last need 5 MiB",
                    number,
                    stat.size
                ));
            }
            chosen.push(stat);
        }
        Ok(chosen)
    }

    /// All parts of an upload, by their numbers.
    async fn all_parts(&self, bucket: &Bucket, upload: &Upload) -> S3Result<Vec<(i32, Stat)>> {
        let (mut all, mut from) = (Vec::new(), Bound::Unbounded);
        loop {
            let request = List { prefix: upload.id.parts(), from, limit: 1000 };
            let page = self.page(&bucket.store, request).await?;
            let last = page.objects.last().map(|stat| stat.name.clone());
            all.extend(page.objects.into_iter().filter_map(|stat| Some((part_id(&stat.name)?.1?, stat))));
            match last {
                Some(last) if page.more => from = Bound::Excluded(last),
                _ => return Ok(all),
            }
        }
    }
}

/// What a client is told whose upload became an object.
fn completion(input: CompleteMultipartUploadInput, stat: &Stat) -> Answer<CompleteMultipartUploadOutput> {
    let mut output = CompleteMultipartUploadOutput {
        location: Some(format!("/{}/{}", input.bucket, Encoding::url().text(&input.key))),
        bucket: Some(input.bucket),
        key: Some(input.key),
        e_tag: Some(described::etag(stat)),
        ..Default::default()
    };
    let sums = described::checksums(stat);
    output.checksum_type = sums.checksum_type.clone();
    put_checksums!(output, sums);
    answer(output)
}

/// Makes the object of the upload itself, which is empty, and its parts.
async fn compose(
    store: &Store,
    id: &UploadId,
    record: Name,
    mut parts: Vec<Name>,
    name: &Name,
    put: Put,
) -> ashlar_objects::Result<Stat> {
    if parts.len() >= PARTS_MAX {
        // A change that cannot be made must not cost the parts.
        let version = match store.stat(name).await {
            Ok(stat) => Some(stat.version),
            Err(Error::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        if !put.change.condition.holds(version) {
            return Err(Error::Condition(name.clone()));
        }
        let mut groups = Vec::new();
        for (number, some) in parts.chunks(PARTS_MAX).enumerate() {
            let group = id.group(number);
            let hidden = Change { durability: Durability::Async, ..Change::default() };
            store.compose(&group, some, Put { change: hidden, ..Put::default() }).await?;
            groups.push(group);
        }
        parts = groups;
    }
    parts.insert(0, record);
    store.compose(name, &parts, put).await
}

/// Deletes all parts of an upload.
async fn forget_parts(store: &Store, prefix: &[u8]) -> ashlar_objects::Result<()> {
    loop {
        let page = store.list(List { prefix: prefix.to_vec(), from: Bound::Unbounded, limit: 1000 }).await?;
        for stat in &page.objects {
            forget(store, &stat.name).await?;
        }
        if !page.more {
            return Ok(());
        }
    }
}

/// Deletes parts of uploads that are no more.
pub(super) async fn collect(store: &Store) -> ashlar_objects::Result<()> {
    let list = async |prefix: Vec<u8>, from| store.list(List { prefix, from, limit: 1000 }).await;
    // Parts first: of an upload that begins later there is no part among them.
    let (mut with_parts, mut from) = (BTreeSet::new(), Bound::Unbounded);
    loop {
        let page = list(PARTS.to_vec(), from).await?;
        let Some((id, _)) = page.objects.last().and_then(|stat| part_id(&stat.name)) else { break };
        with_parts.extend(page.objects.iter().filter_map(|stat| Some(part_id(&stat.name)?.0)));
        // On to the next upload: '0' follows '/'.
        let mut next = id.parts();
        next.pop();
        next.push(b'/' + 1);
        from = Bound::Included(Name::new(next)?);
    }
    let mut from = Bound::Unbounded;
    loop {
        let page = list(records_under(b""), from).await?;
        for id in page.objects.iter().filter_map(|stat| record_id(&stat.name)) {
            with_parts.remove(&id);
        }
        match page.objects.last() {
            Some(last) if page.more => from = Bound::Excluded(last.name.clone()),
            _ => break,
        }
    }
    for dead in with_parts {
        forget_parts(store, &dead.parts()).await?;
    }
    Ok(())
}
