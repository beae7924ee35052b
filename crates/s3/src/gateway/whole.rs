//! Entity tag and checksums of an upload from those of its parts.

use super::multipart::Upload;
use crate::described;
use crate::lanes::Md5;
use crate::sums::{hasher, hex, only, value_at};
use ashlar_objects::Stat;
use crc_fast::CrcAlgorithm;
use s3s::dto::{Checksum, ChecksumType};
use s3s::{S3Result, s3_error};

/// MD5 of the parts' MD5s, and how many they are.
pub(super) fn etag_of(parts: &[Stat]) -> S3Result<String> {
    let mut md5 = Md5::new();
    for part in parts {
        let tag = described::etag_text(part);
        let digits: Option<Vec<u8>> =
            (0..tag.len() / 2).map(|at| u8::from_str_radix(tag.get(2 * at..2 * at + 2)?, 16).ok()).collect();
        md5.update(&digits.ok_or_else(|| s3_error!(InternalError, "the entity tag of a part is damaged"))?);
    }
    Ok(format!("{}-{}", hex(&md5.finish()), parts.len()))
}

/// The checksum of the whole from those of the parts.
pub(super) fn checksum_of(upload: &Upload, place: usize, parts: &[Stat]) -> S3Result<Checksum> {
    let missing = || s3_error!(InvalidRequest, "a part has no checksum of the kind that the upload was begun with");
    let mut values = Vec::new();
    for part in parts {
        let sums = described::checksums(part);
        let value = value_at(&sums, place).ok_or_else(missing)?;
        values.push((base64_simd::STANDARD.decode_to_vec(value).map_err(|_| missing())?, part.size));
    }
    if upload.is_of_whole() {
        let algorithm = [CrcAlgorithm::Crc32IsoHdlc, CrcAlgorithm::Crc32Iscsi, CrcAlgorithm::Crc64Nvme];
        let algorithm = *algorithm.get(place).ok_or_else(missing)?;
        let number = |bytes: &[u8]| bytes.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        let mut all = crc_fast::checksum(algorithm, b"");
        for (value, size) in &values {
            all = crc_fast::checksum_combine(algorithm, all, number(value), *size);
        }
        let len = values.first().map_or(0, |(value, _)| value.len()).min(8);
        let value = base64_simd::STANDARD.encode_to_string(&all.to_be_bytes()[8 - len..]);
        let kind = ChecksumType::from_static(ChecksumType::FULL_OBJECT);
        return Ok(Checksum { checksum_type: Some(kind), ..only(place, value) });
    }
    let mut hasher = hasher(place);
    values.iter().for_each(|(value, _)| hasher.update(value));
    let sums = hasher.finalize();
    let value = format!("{}-{}", value_at(&sums, place).ok_or_else(missing)?, parts.len());
    let kind = ChecksumType::from_static(ChecksumType::COMPOSITE);
    Ok(Checksum { checksum_type: Some(kind), ..only(place, value) })
}
