//! Errors of stores and bodies, as S3 says them.

use ashlar_block::Kind;
use ashlar_objects::Error;
use s3s::{S3Error, S3ErrorCode, StdError, s3_error};

/// What a client is told when a store refuses or fails.
pub(crate) fn of_store(error: Error) -> S3Error {
    match error {
        Error::NotFound(_) => s3_error!(NoSuchKey, "there is no such object"),
        Error::Condition(_) => precondition(),
        Error::TooLarge { what, .. } if what.contains("attributes") => s3_error!(MetadataTooLarge, "{error}"),
        Error::TooLarge { what: "a name", .. } => s3_error!(KeyTooLongError, "{error}"),
        Error::TooLarge { .. } => s3_error!(EntityTooLarge, "{error}"),
        Error::NoSpace => {
            let mut full = s3_error!(InternalError, "{error}");
            full.set_code(S3ErrorCode::Custom("InsufficientStorage".into()));
            full.set_status_code(hyper::StatusCode::INSUFFICIENT_STORAGE);
            full
        }
        Error::Misuse(message) => s3_error!(InvalidRequest, "{message}"),
        Error::Storage(error) if error.kind() == Kind::Retry => s3_error!(SlowDown, "{error}"),
        Error::Storage(error) => s3_error!(InternalError, "{error}"),
    }
}

/// An object is not in the state that the request asked for.
pub(crate) fn precondition() -> S3Error {
    s3_error!(PreconditionFailed, "the object is not in the state that the request asks for")
}

/// A body that ended wrongly. The library's errors have no types that others can name, so their texts tell.
pub(crate) fn of_body(error: &StdError) -> S3Error {
    let text = error.to_string();
    let says = |word: &str| text.contains(word);
    if says("Sha256Mismatch") {
        let mut error = s3_error!(BadDigest, "the body is not what x-amz-content-sha256 says");
        error.set_code(S3ErrorCode::Custom("XAmzContentSHA256Mismatch".into()));
        error.set_status_code(hyper::StatusCode::BAD_REQUEST);
        error
    } else if says("SignatureMismatch") {
        s3_error!(SignatureDoesNotMatch, "the signature of a chunk or of the trailers is wrong")
    } else if says(crate::body::STALLED) {
        s3_error!(RequestTimeout, "{}", crate::body::STALLED)
    } else if says(crate::rechunk::WRONG) {
        s3_error!(InvalidRequest, "{}", text.rsplit("Underlying: ").next().unwrap_or(crate::rechunk::WRONG))
    } else if says("FormatError") || says("TooLarge") || says("TooMany") {
        s3_error!(InvalidRequest, "the body is no aws-chunked stream: {text}")
    } else {
        s3_error!(IncompleteBody, "the body ended before it was whole")
    }
}
