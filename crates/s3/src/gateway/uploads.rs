//! Listings of uploads and of their parts.

use super::list::{Encoding, Wanted, common_prefix};
use super::multipart::{ALGORITHM, KEY, KIND};
use super::{Answer, Gateway, answer, int, owner, page_len, timestamp};
use crate::described::{self, put_checksums};
use crate::error::of_store;
use crate::names::{PART_MAX, UploadId, part_id, record_id, records_under};
use ashlar_objects::{List, Name, Stat, Store};
use s3s::S3Result;
use s3s::dto::*;
use std::ops::Bound;

impl Gateway {
    pub(super) async fn parts(&self, input: ListPartsInput) -> Answer<ListPartsOutput> {
        let bucket = self.bucket(&input.bucket).await?;
        let upload = self.upload(&bucket, &input.key, &input.upload_id).await?;
        let limit = page_len(input.max_parts, "max-parts")?;
        let after = input.part_number_marker.unwrap_or(0).clamp(0, PART_MAX);
        let from = Bound::Excluded(upload.id.part(after));
        let page = self.page(&bucket.store, List { prefix: upload.id.parts(), from, limit: limit.max(1) }).await?;
        let part = |stat: &Stat| {
            let mut part = Part {
                part_number: part_id(&stat.name)?.1,
                e_tag: Some(described::etag(stat)),
                last_modified: Some(timestamp(stat.modified)),
                size: Some(int(stat.size)),
                ..Default::default()
            };
            put_checksums!(part, described::checksums(stat));
            Some(part)
        };
        let parts: Vec<Part> = page.objects.iter().take(limit).filter_map(part).collect();
        answer(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            is_truncated: Some(page.more || page.objects.len() > limit),
            max_parts: Some(limit as i32),
            part_number_marker: Some(after),
            next_part_number_marker: parts.last().and_then(|last| last.part_number),
            parts: Some(parts),
            owner: Some(owner()),
            initiator: Some(Initiator { id: owner().id, display_name: owner().display_name }),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            checksum_algorithm: upload.text(ALGORITHM).map(Into::into),
            checksum_type: upload.text(KIND).map(Into::into),
            ..Default::default()
        })
    }

    pub(super) async fn uploads(&self, input: ListMultipartUploadsInput) -> Answer<ListMultipartUploadsOutput> {
        let bucket = self.bucket(&input.bucket).await?;
        let limit = page_len(input.max_uploads, "max-uploads")?;
        let encode = Encoding::new(input.encoding_type.as_ref())?;
        let wanted = Wanted {
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone().unwrap_or_default(),
            after: input.key_marker.clone().unwrap_or_default(),
            limit,
        };
        let marker = input.upload_id_marker.as_deref().and_then(UploadId::parse);
        let (lines, more) = self.upload_lines(&bucket.store, &wanted, marker.as_ref()).await?;
        let (mut uploads, mut prefixes, mut last) = (Vec::new(), Vec::new(), (None, None));
        for line in lines {
            match line {
                UploadLine::Prefix(prefix) => {
                    prefixes.push(CommonPrefix { prefix: Some(encode.text(&prefix)) });
                    last = (Some(encode.text(&prefix)), None);
                }
                UploadLine::Upload(key, id, stat) => {
                    last = (Some(encode.text(&key)), Some(id.as_str().to_string()));
                    uploads.push(MultipartUpload {
                        key: Some(encode.text(&key)),
                        upload_id: Some(id.as_str().into()),
                        initiated: Some(timestamp(stat.modified)),
                        owner: Some(owner()),
                        initiator: Some(Initiator { id: owner().id, display_name: owner().display_name }),
                        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
                        checksum_algorithm: described::text(&stat, ALGORITHM).map(Into::into),
                        checksum_type: described::text(&stat, KIND).map(Into::into),
                    });
                }
            }
        }
        let (next_key_marker, next_upload_id_marker) = if more { last } else { (None, None) };
        answer(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            is_truncated: Some(more),
            max_uploads: Some(limit as i32),
            uploads: Some(uploads),
            common_prefixes: Some(prefixes),
            prefix: input.prefix.map(|text| encode.text(&text)),
            delimiter: input.delimiter.map(|text| encode.text(&text)),
            key_marker: Some(encode.text(&wanted.after)),
            upload_id_marker: input.upload_id_marker,
            next_key_marker,
            next_upload_id_marker,
            encoding_type: input.encoding_type,
            ..Default::default()
        })
    }

    /// A page of uploads and common prefixes behind a key and, of that key, behind an upload.
    async fn upload_lines(
        &self,
        store: &Store,
        wanted: &Wanted,
        marker: Option<&UploadId>,
    ) -> S3Result<(Vec<UploadLine>, bool)> {
        let mut lines: Vec<UploadLine> = Vec::new();
        if wanted.limit == 0 {
            return Ok((lines, false));
        }
        let mut from = match wanted.after.as_str() {
            "" => Bound::Unbounded,
            after => Bound::Included(name(records_under(after.as_bytes()))?),
        };
        loop {
            let request = List { prefix: records_under(wanted.prefix.as_bytes()), from, limit: 1000 };
            let page = self.page(store, request).await?;
            let last = page.objects.last().map(|stat| stat.name.clone());
            for stat in page.objects {
                let (Some(key), Some(id)) = (described::text(&stat, KEY), record_id(&stat.name)) else { continue };
                let passed = match key.as_str().cmp(&wanted.after) {
                    std::cmp::Ordering::Less => true,
                    std::cmp::Ordering::Equal => marker.is_none_or(|marker| id <= *marker),
                    std::cmp::Ordering::Greater => false,
                };
                if !key.starts_with(&wanted.prefix) || (passed && !wanted.after.is_empty()) {
                    continue;
                }
                let common = common_prefix(&key, &wanted.prefix, &wanted.delimiter).map(str::to_string);
                if let Some(common) = &common
                    && (*common == wanted.after || lines.last().is_some_and(|line| line.is_prefix(common)))
                {
                    continue;
                }
                if lines.len() == wanted.limit {
                    return Ok((lines, true));
                }
                lines.push(match common {
                    Some(common) => UploadLine::Prefix(common),
                    None => UploadLine::Upload(key, id, Box::new(stat)),
                });
            }
            match last {
                Some(last) if page.more => from = Bound::Excluded(last),
                _ => return Ok((lines, false)),
            }
        }
    }
}

/// A line of a listing of uploads.
enum UploadLine {
    Upload(String, UploadId, Box<Stat>),
    Prefix(String),
}

impl UploadLine {
    fn is_prefix(&self, prefix: &str) -> bool {
        matches!(self, UploadLine::Prefix(known) if known == prefix)
    }
}

fn name(bytes: Vec<u8>) -> S3Result<Name> {
    Name::new(bytes).map_err(of_store)
}
