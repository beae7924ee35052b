//! Checksums of a body while it passes.

use crate::lanes::{Lanes, Md5};
use bytes::Bytes;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
use s3s::dto::{Checksum, ChecksumAlgorithm, ChecksumType};
use s3s::{S3Result, TrailingHeaders, s3_error};

/// The header, or trailer, of a checksum.
const HEADERS: [&str; 5] = [
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
];

/// What a client says about a body before it comes.
#[derive(Default)]
pub(crate) struct Expected {
    /// Checksums in headers.
    pub(crate) sums: Checksum,
    /// `Content-MD5`.
    pub(crate) md5: Option<String>,
    /// The checksum that it names without saying it.
    pub(crate) algorithm: Option<ChecksumAlgorithm>,
    /// The header `x-amz-trailer`: which checksums follow the body.
    pub(crate) announced: Option<String>,
    /// Where they are then.
    pub(crate) trailers: Option<TrailingHeaders>,
}

/// Takes what a client says about a body from the fields of an input that has one.
macro_rules! expected {
    ($input:expr, $announced:expr, $trailers:expr) => {
        crate::sums::Expected {
            sums: crate::described::take_checksums!($input),
            md5: $input.content_md5.take(),
            algorithm: $input.checksum_algorithm.take(),
            announced: $announced,
            trailers: $trailers,
        }
    };
}
pub(crate) use expected;

/// Computes what a client expects, and MD5.
pub(crate) struct Sums {
    md5: Md5,
    hasher: ChecksumHasher,
    expected: Expected,
    /// Places in [`HEADERS`] of those that follow the body.
    announced: Vec<usize>,
}

fn values(sums: &Checksum) -> [Option<&String>; 5] {
    [
        sums.checksum_crc32.as_ref(),
        sums.checksum_crc32c.as_ref(),
        sums.checksum_crc64nvme.as_ref(),
        sums.checksum_sha1.as_ref(),
        sums.checksum_sha256.as_ref(),
    ]
}

/// Makes a hasher compute one more checksum, by its place in [`HEADERS`].
fn add(hasher: &mut ChecksumHasher, place: usize) {
    match place {
        0 => hasher.crc32 = Some(Crc32::new()),
        1 => hasher.crc32c = Some(Crc32c::new()),
        2 => hasher.crc64nvme = Some(Crc64Nvme::new()),
        3 => hasher.sha1 = Some(Sha1::new()),
        _ => hasher.sha256 = Some(Sha256::new()),
    }
}

/// Place of an algorithm in [`HEADERS`], by its name in any case.
pub(crate) fn place_of(algorithm: &str) -> Option<usize> {
    let header = format!("x-amz-checksum-{}", algorithm.to_ascii_lowercase());
    HEADERS.iter().position(|known| *known == header)
}

/// A hasher of one checksum.
pub(crate) fn hasher(place: usize) -> ChecksumHasher {
    let mut hasher = ChecksumHasher::default();
    add(&mut hasher, place);
    hasher
}

/// The value at a place, if there is one.
pub(crate) fn value_at(sums: &Checksum, place: usize) -> Option<&String> {
    values(sums).get(place).copied().flatten()
}

/// Checksums of which only one has a value.
pub(crate) fn only(place: usize, value: String) -> Checksum {
    let mut sums = Checksum::default();
    let field = match place {
        0 => &mut sums.checksum_crc32,
        1 => &mut sums.checksum_crc32c,
        2 => &mut sums.checksum_crc64nvme,
        3 => &mut sums.checksum_sha1,
        _ => &mut sums.checksum_sha256,
    };
    *field = Some(value);
    sums
}

impl Sums {
    /// # Errors
    /// What the client says cannot be.
    pub(crate) fn new(expected: Expected) -> S3Result<Sums> {
        let mut hasher = ChecksumHasher::default();
        let said = values(&expected.sums);
        if said.iter().flatten().count() > 1 {
            return Err(s3_error!(InvalidRequest, "expecting a single x-amz-checksum- header"));
        }
        said.iter().enumerate().filter(|(_, value)| value.is_some()).for_each(|(place, _)| add(&mut hasher, place));
        let mut announced = Vec::new();
        for name in expected.announced.iter().flat_map(|names| names.split(',')) {
            let name = name.trim().to_ascii_lowercase();
            let place = HEADERS.iter().position(|known| *known == name);
            let place = place.ok_or_else(|| s3_error!(InvalidRequest, "the trailer {name:?} is not known here"))?;
            add(&mut hasher, place);
            announced.push(place);
        }
        if let Some(algorithm) = &expected.algorithm {
            let name = algorithm.as_str();
            let place =
                place_of(name).ok_or_else(|| s3_error!(InvalidRequest, "{name:?} is no checksum known here"))?;
            add(&mut hasher, place);
        }
        if let Some(md5) = &expected.md5 {
            let decoded = base64_simd::STANDARD.decode_to_vec(md5);
            if !decoded.is_ok_and(|bytes| bytes.len() == 16) {
                return Err(s3_error!(InvalidDigest, "Content-MD5 is no MD5 in base64"));
            }
        }
        Ok(Sums { md5: Md5::new(), hasher, expected, announced })
    }

    pub(crate) async fn update(&mut self, lanes: &Lanes, data: &Bytes) {
        lanes.update(&mut self.md5, data).await;
        self.hasher.update(data);
    }

    /// MD5 and checksums of the whole body, if they are those that the client expects.
    ///
    /// # Errors
    /// `BadDigest` if not.
    pub(crate) fn finish(self) -> S3Result<([u8; 16], Checksum)> {
        let md5 = self.md5.finish();
        let mut found = self.hasher.finalize();
        let wrong = |what: &str| s3_error!(BadDigest, "the {what} of the body is not what you specified");
        if let Some(expected) = &self.expected.md5
            && *expected != base64_simd::STANDARD.encode_to_string(md5)
        {
            return Err(wrong("MD5"));
        }
        for (place, expected) in values(&self.expected.sums).into_iter().enumerate() {
            if let Some(expected) = expected
                && value_at(&found, place) != Some(expected)
            {
                return Err(wrong(HEADERS[place]));
            }
        }
        for place in self.announced {
            let header = HEADERS[place];
            let sent =
                self.expected.trailers.as_ref().and_then(|trailers| {
                    trailers.read(|map| Some(map.get(header)?.to_str().ok()?.to_string())).flatten()
                });
            match sent {
                None => return Err(s3_error!(IncompleteBody, "the trailer {header} was announced and did not come")),
                Some(sent) if value_at(&found, place) != Some(&sent) => return Err(wrong(header)),
                Some(_) => {}
            }
        }
        if values(&found).iter().any(Option::is_some) {
            found.checksum_type = Some(ChecksumType::from_static(ChecksumType::FULL_OBJECT));
        }
        Ok((md5, found))
    }
}

/// Bytes in hexadecimal digits, as in entity tags.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
