//! What S3 says about an object, as the object's attributes.
//!
//! ```text
//! content-type, cache-control, …    headers that are given back as they came
//! x-amz-meta-NAME                   what the user says
//! etag                              MD5 of the bytes; of uploads in parts MD5 of the MD5s, and their number
//! checksum-NAME, checksum-type      a checksum that the client asked for, in base64
//! parts, part-sums, upload          of uploads in parts; see [`parts`](crate::parts)
//! ```

use crate::parts;
use ashlar_objects::{Attributes, Stat};
use bytes::Bytes;
use s3s::dto::{Checksum, ChecksumType, ETag, Metadata, Timestamp, TimestampFormat};
use s3s::{S3Result, s3_error};

pub(crate) const ETAG: &str = "etag";
const USER: &str = "x-amz-meta-";
/// Most bytes that users may say about an object, as S3 has it.
const USER_MAX: usize = 2048;
/// Most bytes of the headers that are given back.
const HEADERS_MAX: usize = 2048;
/// Headers that are given back as they came.
pub(crate) const CONTENT_TYPE: &str = "content-type";
pub(crate) const HEADERS: [&str; 8] = [
    CONTENT_TYPE,
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
    "x-amz-website-redirect-location",
    "x-amz-storage-class",
];

/// The attributes that a request describes an object with: the fields of its input, which many operations share.
macro_rules! described {
    ($input:expr) => {
        crate::described::attributes(
            [
                $input.content_type.take(),
                $input.cache_control.take(),
                $input.content_disposition.take(),
                crate::described::without_chunks($input.content_encoding.take()),
                $input.content_language.take(),
                crate::described::http_date($input.expires.take()),
                $input.website_redirect_location.take(),
                $input.storage_class.take().map(|class| class.as_str().to_string()),
            ],
            $input.metadata.take(),
        )
    };
}
pub(crate) use described;

/// Puts what an object's attributes say into an output's fields, which many operations share.
macro_rules! describe {
    ($output:expr, $stat:expr) => {{
        let text = |key: &str| crate::described::text($stat, key);
        $output.content_type = Some(text("content-type").unwrap_or_else(|| "binary/octet-stream".into()));
        $output.cache_control = text("cache-control");
        $output.content_disposition = text("content-disposition");
        $output.content_encoding = text("content-encoding");
        $output.content_language = text("content-language");
        $output.expires = text("expires").and_then(|date| crate::described::date(&date));
        $output.website_redirect_location = text("x-amz-website-redirect-location");
        $output.storage_class = text("x-amz-storage-class").filter(|class| class != "STANDARD").map(Into::into);
        $output.metadata = Some(crate::described::user($stat));
        $output.e_tag = Some(crate::described::etag($stat));
        $output.last_modified = Some(crate::gateway::timestamp($stat.modified));
    }};
}
pub(crate) use describe;

/// Puts checksums into the fields of an output that has them.
macro_rules! put_checksums {
    ($output:expr, $sums:expr) => {{
        let sums: s3s::dto::Checksum = $sums;
        $output.checksum_crc32 = sums.checksum_crc32;
        $output.checksum_crc32c = sums.checksum_crc32c;
        $output.checksum_crc64nvme = sums.checksum_crc64nvme;
        $output.checksum_sha1 = sums.checksum_sha1;
        $output.checksum_sha256 = sums.checksum_sha256;
    }};
}
pub(crate) use put_checksums;

/// Takes checksums from the fields of an input that has them.
macro_rules! take_checksums {
    ($input:expr) => {
        s3s::dto::Checksum {
            checksum_crc32: $input.checksum_crc32.take(),
            checksum_crc32c: $input.checksum_crc32c.take(),
            checksum_crc64nvme: $input.checksum_crc64nvme.take(),
            checksum_sha1: $input.checksum_sha1.take(),
            checksum_sha256: $input.checksum_sha256.take(),
            checksum_type: None,
        }
    };
}
pub(crate) use take_checksums;

/// See [`described!`].
pub(crate) fn attributes(headers: [Option<String>; 8], user: Option<Metadata>) -> S3Result<Attributes> {
    let mut attributes = Attributes::new();
    let described: usize = headers.iter().flatten().map(String::len).sum();
    if described > HEADERS_MAX {
        return Err(s3_error!(MetadataTooLarge, "headers of {} bytes; at most {} are taken", described, HEADERS_MAX));
    }
    for (key, value) in HEADERS.into_iter().zip(headers) {
        if let Some(value) = value {
            attributes.insert(key.into(), value.into_bytes().into());
        }
    }
    let mut taken = 0;
    for (key, value) in user.unwrap_or_default() {
        taken += key.len() + value.len();
        attributes.insert(format!("{USER}{}", key.to_ascii_lowercase()), value.into_bytes().into());
    }
    if taken > USER_MAX {
        return Err(s3_error!(MetadataTooLarge, "metadata headers of {} bytes; at most {} are taken", taken, USER_MAX));
    }
    Ok(attributes)
}

/// `aws-chunked` says how a body came, not what it is. What else is there stays as it is written.
pub(crate) fn without_chunks(encoding: Option<String>) -> Option<String> {
    let encoding = encoding?;
    let is_chunked = |one: &str| one.trim() == "aws-chunked";
    if !encoding.split(',').any(is_chunked) {
        return Some(encoding);
    }
    let kept: Vec<&str> =
        encoding.split(',').map(str::trim).filter(|one| !one.is_empty() && !is_chunked(one)).collect();
    (!kept.is_empty()).then(|| kept.join(", "))
}

pub(crate) fn http_date(time: Option<Timestamp>) -> Option<String> {
    let mut text = Vec::new();
    time?.format(TimestampFormat::HttpDate, &mut text).ok()?;
    String::from_utf8(text).ok()
}

pub(crate) fn date(text: &str) -> Option<Timestamp> {
    Timestamp::parse(TimestampFormat::HttpDate, text).ok()
}

/// An attribute as text.
pub(crate) fn text(stat: &Stat, key: &str) -> Option<String> {
    String::from_utf8(stat.attributes.get(key)?.to_vec()).ok()
}

/// What the user says.
pub(crate) fn user(stat: &Stat) -> Metadata {
    let said = |(key, value): (&String, &Bytes)| {
        Some((key.strip_prefix(USER)?.to_string(), String::from_utf8(value.to_vec()).ok()?))
    };
    stat.attributes.iter().filter_map(said).collect()
}

/// The entity tag. An object that did not come through this door has one of its checksum and version, in the form of an
/// upload in parts, which nobody takes for an MD5.
pub(crate) fn etag(stat: &Stat) -> ETag {
    ETag::Strong(etag_text(stat))
}

pub(crate) fn etag_text(stat: &Stat) -> String {
    text(stat, ETAG).unwrap_or_else(|| format!("{:016x}{:016x}-1", stat.checksum, stat.version))
}

const SUMS: [&str; 5] = ["checksum-crc32", "checksum-crc32c", "checksum-crc64nvme", "checksum-sha1", "checksum-sha256"];
const TYPE: &str = "checksum-type";

/// Keeps what is about the bytes, and not said by the user.
pub(crate) fn keep_contents(attributes: &mut Attributes, from: &Stat) {
    attributes.insert(ETAG.into(), etag_text(from).into_bytes().into());
    for key in SUMS.into_iter().chain([TYPE]).chain(parts::KEYS) {
        if let Some(value) = from.attributes.get(key) {
            attributes.insert(key.into(), value.clone());
        }
    }
}

/// Keeps checksums in the attributes of an object.
pub(crate) fn keep_checksums(attributes: &mut Attributes, sums: &Checksum) {
    let values = [
        &sums.checksum_crc32,
        &sums.checksum_crc32c,
        &sums.checksum_crc64nvme,
        &sums.checksum_sha1,
        &sums.checksum_sha256,
    ];
    for (key, value) in SUMS.into_iter().zip(values) {
        if let Some(value) = value {
            attributes.insert(key.into(), value.clone().into_bytes().into());
        }
    }
    if let Some(kind) = &sums.checksum_type {
        attributes.insert(TYPE.into(), kind.as_str().to_string().into_bytes().into());
    }
}

/// Forgets checksums, entity tag and parts: they are of other bytes.
pub(crate) fn forget_contents(attributes: &mut Attributes) {
    SUMS.into_iter().chain([TYPE, ETAG]).chain(parts::KEYS).for_each(|key| drop(attributes.remove(key)));
}

/// The checksums of an object: those that its client asked for, else that of the store.
pub(crate) fn checksums(stat: &Stat) -> Checksum {
    let mut values = SUMS.map(|key| text(stat, key));
    if values.iter().all(Option::is_none) {
        let own = base64_simd::STANDARD.encode_to_string(stat.checksum.to_be_bytes());
        let kind = ChecksumType::from_static(ChecksumType::FULL_OBJECT);
        return Checksum { checksum_crc64nvme: Some(own), checksum_type: Some(kind), ..Checksum::default() };
    }
    Checksum {
        checksum_crc32: values[0].take(),
        checksum_crc32c: values[1].take(),
        checksum_crc64nvme: values[2].take(),
        checksum_sha1: values[3].take(),
        checksum_sha256: values[4].take(),
        checksum_type: text(stat, TYPE).map(Into::into),
    }
}
