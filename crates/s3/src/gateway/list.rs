//! Listings. Keys below a common prefix are skipped by one seek.

use super::write::NO_VERSION;
use super::{Answer, Gateway, answer, int, owner, page_len, timestamp};
use crate::described;
use crate::names::first_key;
use ashlar_objects::{List, NAME_MAX, Name, Stat, Store};
use s3s::dto::*;
use s3s::{S3Result, s3_error};
use std::ops::Bound;

/// Names on the first page after a seek; each further page is twice as long.
const PAGE_AFTER_SEEK: usize = 16;
const PAGE_MAX: usize = 1000;

/// What is to be listed.
pub(super) struct Wanted {
    pub(super) prefix: String,
    pub(super) delimiter: String,
    /// Only what comes behind this key or common prefix.
    pub(super) after: String,
    /// Keys and common prefixes on a page.
    pub(super) limit: usize,
}

impl Wanted {
    /// From the parameters of a request, which has them under several names.
    fn new(
        prefix: Option<String>,
        delimiter: Option<String>,
        after: Option<String>,
        most: Option<i32>,
    ) -> S3Result<Wanted> {
        let limit = page_len(most, "max-keys")?;
        let (prefix, delimiter) = (prefix.unwrap_or_default(), delimiter.unwrap_or_default());
        Ok(Wanted { prefix, delimiter, after: after.unwrap_or_default(), limit })
    }
    /// The delimiter, as an answer has it.
    fn said_delimiter(&self, encode: &Encoding) -> Option<String> {
        Some(&self.delimiter).filter(|text| !text.is_empty()).map(|text| encode.text(text))
    }
}

/// A line of a listing.
#[derive(Debug, PartialEq)]
pub(super) enum Line {
    Object(Box<Stat>),
    Prefix(String),
}

impl Line {
    fn text(&self) -> String {
        match self {
            Line::Object(stat) => key_of(stat),
            Line::Prefix(prefix) => prefix.clone(),
        }
    }
}

/// A page of a listing.
pub(super) struct Page {
    pub(super) lines: Vec<Line>,
    pub(super) more: bool,
}

/// A name as text. Names that are none were not made through this door; their odd bytes are shown as U+FFFD.
pub(super) fn key_of(stat: &Stat) -> String {
    String::from_utf8_lossy(stat.name.as_bytes()).into_owned()
}

/// Where names begin that come behind all that begin with `prefix`.
fn behind(prefix: &[u8]) -> Option<Bound<Name>> {
    let keep = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=keep].to_vec();
    end[keep] += 1;
    Name::new(end).ok().map(Bound::Included)
}

/// The part of `key` up to the first delimiter behind `prefix`.
pub(super) fn common_prefix<'a>(key: &'a str, prefix: &str, delimiter: &str) -> Option<&'a str> {
    let rest = key.get(prefix.len()..).filter(|_| !delimiter.is_empty())?;
    let at = rest.find(delimiter)?;
    key.get(..prefix.len() + at + delimiter.len())
}

impl Gateway {
    /// A page of objects and common prefixes.
    pub(super) async fn lines(&self, store: &Store, wanted: &Wanted) -> S3Result<Page> {
        let Wanted { prefix, delimiter, after, limit } = wanted;
        let mut page = Page { lines: Vec::new(), more: false };
        if *limit == 0 || prefix.len() > NAME_MAX {
            return Ok(page);
        }
        // Longer than any name: it may be cut, for what is cut comes just behind.
        let after_bytes = &after.as_bytes()[..after.len().min(NAME_MAX)];
        let mut from = match (common_prefix(after, prefix, delimiter), Name::new(after_bytes.to_vec())) {
            (Some(common), _) if after.starts_with(prefix.as_str()) && common == after => {
                let Some(from) = behind(after.as_bytes()) else { return Ok(page) };
                from
            }
            (_, Ok(name)) => Bound::Excluded(name),
            (_, Err(_)) => Bound::Included(first_key()),
        };
        // What the door keeps for itself comes before all keys.
        if let Bound::Included(name) | Bound::Excluded(name) = &from
            && *name < first_key()
        {
            from = Bound::Included(first_key());
        }
        let mut size = (*limit + 1).min(PAGE_MAX);
        'pages: loop {
            let found = self.page(store, List { prefix: prefix.clone().into(), from, limit: size }).await?;
            let mut last = None;
            for stat in found.objects {
                let key = key_of(&stat);
                let common = common_prefix(&key, prefix, delimiter);
                if page.lines.len() == *limit {
                    page.more = true;
                    return Ok(page);
                }
                let Some(common) = common else {
                    last = Some(stat.name.clone());
                    page.lines.push(Line::Object(Box::new(stat)));
                    continue;
                };
                let next = behind(common.as_bytes());
                page.lines.push(Line::Prefix(common.to_string()));
                let Some(next) = next else { return Ok(page) };
                from = next;
                size = PAGE_AFTER_SEEK.min(*limit - page.lines.len() + 1);
                continue 'pages;
            }
            match last {
                Some(last) if found.more => from = Bound::Excluded(last),
                _ => return Ok(page),
            }
            size = (size * 2).min(PAGE_MAX);
        }
    }

    pub(super) async fn list_v1(&self, input: ListObjectsInput) -> Answer<ListObjectsOutput> {
        let bucket = self.bucket(&input.bucket).await?;
        let encode = Encoding::new(input.encoding_type.as_ref())?;
        let wanted = Wanted::new(input.prefix, input.delimiter, input.marker, input.max_keys)?;
        let page = self.lines(&bucket.store, &wanted).await?;
        let next = page.lines.last().filter(|_| page.more).map(Line::text);
        let (contents, common_prefixes) = encode.lines(page.lines, true);
        answer(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(encode.text(&wanted.prefix)),
            marker: Some(encode.text(&wanted.after)),
            max_keys: Some(wanted.limit as i32),
            is_truncated: Some(page.more),
            // Without a delimiter the last key is the marker; with one it has to be said. It may always be.
            next_marker: next.map(|next| encode.text(&next)),
            contents: Some(contents),
            common_prefixes: Some(common_prefixes),
            delimiter: wanted.said_delimiter(&encode),
            encoding_type: input.encoding_type,
            ..Default::default()
        })
    }

    pub(super) async fn list_v2(&self, input: ListObjectsV2Input) -> Answer<ListObjectsV2Output> {
        let bucket = self.bucket(&input.bucket).await?;
        let encode = Encoding::new(input.encoding_type.as_ref())?;
        let after = match input.continuation_token.as_deref() {
            None | Some("") => input.start_after.clone(),
            Some(token) => Some(from_token(token)?),
        };
        let wanted = Wanted::new(input.prefix, input.delimiter, after, input.max_keys)?;
        let page = self.lines(&bucket.store, &wanted).await?;
        let next = page.lines.last().filter(|_| page.more).map(|line| to_token(&line.text()));
        let key_count = page.lines.len() as i32;
        let (contents, common_prefixes) = encode.lines(page.lines, input.fetch_owner == Some(true));
        answer(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(encode.text(&wanted.prefix)),
            max_keys: Some(wanted.limit as i32),
            key_count: Some(key_count),
            continuation_token: input.continuation_token,
            is_truncated: Some(page.more),
            next_continuation_token: next,
            contents: Some(contents),
            common_prefixes: Some(common_prefixes),
            delimiter: wanted.said_delimiter(&encode),
            encoding_type: input.encoding_type,
            start_after: input.start_after.map(|text| encode.text(&text)),
            request_charged: None,
        })
    }
}

impl Gateway {
    /// Every object has one version, which S3 calls `null` in buckets that keep none.
    pub(super) async fn versions(&self, input: ListObjectVersionsInput) -> Answer<ListObjectVersionsOutput> {
        let bucket = self.bucket(&input.bucket).await?;
        let encode = Encoding::new(input.encoding_type.as_ref())?;
        let wanted = Wanted::new(input.prefix, input.delimiter, input.key_marker, input.max_keys)?;
        let page = self.lines(&bucket.store, &wanted).await?;
        let next = page.lines.last().filter(|_| page.more).map(|line| encode.text(&line.text()));
        let (contents, common_prefixes) = encode.lines(page.lines, true);
        let version = |object: Object| ObjectVersion {
            key: object.key,
            version_id: Some(NO_VERSION.into()),
            is_latest: Some(true),
            e_tag: object.e_tag,
            last_modified: object.last_modified,
            size: object.size,
            owner: object.owner,
            storage_class: Some(ObjectVersionStorageClass::from_static(ObjectVersionStorageClass::STANDARD)),
            ..Default::default()
        };
        answer(ListObjectVersionsOutput {
            name: Some(input.bucket),
            prefix: Some(encode.text(&wanted.prefix)),
            key_marker: Some(encode.text(&wanted.after)),
            version_id_marker: input.version_id_marker,
            max_keys: Some(wanted.limit as i32),
            is_truncated: Some(page.more),
            next_version_id_marker: next.is_some().then(|| NO_VERSION.into()),
            next_key_marker: next,
            versions: Some(contents.into_iter().map(version).collect()),
            common_prefixes: Some(common_prefixes),
            delimiter: wanted.said_delimiter(&encode),
            encoding_type: input.encoding_type,
            ..Default::default()
        })
    }
}

/// Where the next page begins, as clients hand it back.
pub(super) fn to_token(after: &str) -> String {
    base64_simd::URL_SAFE_NO_PAD.encode_to_string(after)
}

/// See [`to_token`].
pub(super) fn from_token(token: &str) -> S3Result<String> {
    let bytes = base64_simd::URL_SAFE_NO_PAD.decode_to_vec(token).ok().filter(|bytes| !bytes.is_empty());
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).filter(|text| text.len() <= 4 * NAME_MAX);
    text.ok_or_else(|| s3_error!(InvalidArgument, "the continuation token is none of ours"))
}

/// How names are written in an answer: XML cannot hold every character.
pub(super) struct Encoding(bool);

impl Encoding {
    pub(super) fn url() -> Encoding {
        Encoding(true)
    }

    pub(super) fn new(asked: Option<&EncodingType>) -> S3Result<Encoding> {
        match asked.map(EncodingType::as_str) {
            None => Ok(Encoding(false)),
            Some(EncodingType::URL) => Ok(Encoding(true)),
            Some(other) => Err(s3_error!(InvalidArgument, "{other:?} is no encoding-type; there is url")),
        }
    }

    pub(super) fn text(&self, text: &str) -> String {
        if !self.0 {
            return text.into();
        }
        let mut encoded = String::with_capacity(text.len());
        for byte in text.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                    encoded.push(char::from(byte));
                }
                _ => encoded.push_str(&format!("%{byte:02X}")),
            }
        }
        encoded
    }

    fn lines(&self, lines: Vec<Line>, owners: bool) -> (Vec<Object>, Vec<CommonPrefix>) {
        let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
        for line in lines {
            match line {
                Line::Prefix(prefix) => prefixes.push(CommonPrefix { prefix: Some(self.text(&prefix)) }),
                Line::Object(stat) => objects.push(Object {
                    key: Some(self.text(&key_of(&stat))),
                    e_tag: Some(described::etag(&stat)),
                    last_modified: Some(timestamp(stat.modified)),
                    size: Some(int(stat.size)),
                    owner: owners.then(owner),
                    storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
                    ..Default::default()
                }),
            }
        }
        (objects, prefixes)
    }
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
