//! What every request passes before it is understood: what the library takes and we do not is refused here.

use crate::body::Inlet;
use crate::budget::{Allowance, Budget};
use ashlar_env::Env;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, TRANSFER_ENCODING};
use hyper::{Method, Request};
use s3s::access::{S3Access, S3AccessContext};
use s3s::service::S3Service;
use s3s::{Body, HttpError, HttpResponse, S3Error, S3Result, s3_error};
use std::time::Duration;

/// Longest XML document of a request: 10,000 parts with a checksum each, or 1,000 keys of 1,024 bytes with escapes.
pub(crate) const XML_MAX: u64 = 6 << 20;
/// What a parsed document takes, for each byte of its text.
const XML_WEIGHT: u64 = 4;
/// What a page of a listing takes: 1,000 objects, each with what [`described`](crate::described) lets it have.
const LISTING: u64 = 6 << 20;
/// For how long a signed URL may hold, in seconds, as S3 has it: a week.
const PRESIGNED_MAX: u64 = 604_800;
/// How the header `x-amz-content-sha256` of a body in chunks begins.
const STREAMING: &str = "STREAMING-";

/// The door's outer side.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) service: S3Service,
    pub(crate) env: Env,
    pub(crate) patience: Duration,
}

impl Door {
    pub(crate) async fn call(self, request: Request<Incoming>) -> Result<HttpResponse, HttpError> {
        let number = format!("{:016X}", self.env.random());
        let has_body = matches!(*request.method(), Method::PUT | Method::POST);
        let mut response = match refuse(&request) {
            Some(error) => error.to_http_response().map_err(|error| HttpError::new(Box::new(error)))?,
            None => {
                let chunked = content_sha256(&request).is_some_and(|value| value.starts_with(STREAMING));
                let patience = self.patience;
                let request = request.map(|body| Body::http_body_unsync(Inlet::new(body, chunked, patience)));
                let unquotes = is_about_attributes(&request);
                let response = self.service.call(request).await?;
                if unquotes { rewritten(response, without_quotes) } else { response }
            }
        };
        let refused = response.status().is_client_error() || response.status().is_server_error();
        if refused {
            response = rewritten(response, |text| with_number(text, &number));
        }
        let headers = response.headers_mut();
        headers.insert("x-amz-request-id", HeaderValue::try_from(number).unwrap_or(HeaderValue::from_static("0")));
        headers.insert("server", HeaderValue::from_static("Ashlar"));
        if refused && has_body {
            // What the client still sends of a body that nobody wants is not waited for.
            headers.insert("connection", HeaderValue::from_static("close"));
        }
        Ok(response)
    }
}

/// Puts another text in the place of an answer's document.
fn rewritten(response: HttpResponse, change: impl FnOnce(&str) -> Option<String>) -> HttpResponse {
    let (mut parts, body) = response.into_parts();
    let changed = body.bytes().and_then(|bytes| change(std::str::from_utf8(&bytes).ok()?));
    let Some(text) = changed else { return HttpResponse::from_parts(parts, body) };
    if parts.headers.contains_key(CONTENT_LENGTH) {
        parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
    }
    HttpResponse::from_parts(parts, Body::from(text))
}

/// The document of an error with the number of its request, which users quote.
fn with_number(text: &str, number: &str) -> Option<String> {
    let begun = text.strip_suffix("</Error>")?;
    Some(format!("{begun}<RequestId>{number}</RequestId></Error>"))
}

/// Whether a request is GetObjectAttributes: the one operation whose entity tag S3 writes without quotes.
fn is_about_attributes<B>(request: &Request<B>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    *request.method() == Method::GET && query.split('&').any(|one| one == "attributes" || one == "attributes=")
}

fn without_quotes(text: &str) -> Option<String> {
    let (before, rest) = text.split_once("<ETag>")?;
    let (tag, after) = rest.split_once("</ETag>")?;
    let tag = tag.trim_matches('"').trim_start_matches("&quot;").trim_end_matches("&quot;");
    Some(format!("{before}<ETag>{tag}</ETag>{after}"))
}

fn content_sha256<B>(request: &Request<B>) -> Option<&str> {
    request.headers().get("x-amz-content-sha256")?.to_str().ok()
}

/// Why a request is refused whoever sends it.
fn refuse<B>(request: &Request<B>) -> Option<S3Error> {
    let header = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    // In URLs version 2 is taken: `aws s3 presign` still makes such ones, and they expire.
    if header(AUTHORIZATION).is_some_and(|value| value.starts_with("AWS ")) {
        return Some(s3_error!(InvalidRequest, "signatures of version 2 are not taken; sign with AWS4-HMAC-SHA256"));
    }
    if header(CONTENT_TYPE).is_some_and(|value| value.to_ascii_lowercase().starts_with("multipart/form-data")) {
        return Some(s3_error!(NotImplemented, "uploads by HTML forms are not taken; send PUT"));
    }
    if let Some(expires) = presigned_for(request)
        && !expires.parse::<u64>().is_ok_and(|expires| (1..=PRESIGNED_MAX).contains(&expires))
    {
        return Some(s3_error!(AccessDenied, "X-Amz-Expires is to be 1 to {} seconds", PRESIGNED_MAX));
    }
    if header(HeaderName::from_static("content-md5")) == Some("") {
        return Some(s3_error!(InvalidDigest, "Content-MD5 is empty"));
    }
    let path = request.uri().path();
    if let Some(wrong) = wrong_path(path) {
        return Some(s3_error!(InvalidURI, "{wrong}"));
    }
    let streams = content_sha256(request).is_some_and(|value| value.starts_with(STREAMING));
    if streams && !request.headers().contains_key(AUTHORIZATION) {
        return Some(s3_error!(
            NotImplemented,
            "a body in chunks has to be signed; this server was given no credentials, \
            or the client none"
        ));
    }
    None
}

/// For how many seconds a URL is said to hold, if it is signed.
fn presigned_for<B>(request: &Request<B>) -> Option<&str> {
    request.uri().query()?.split('&').find_map(|one| one.strip_prefix("X-Amz-Expires="))
}

/// What is wrong with the path of a request, if anything is.
fn wrong_path(path: &str) -> Option<&'static str> {
    let mut rest = path.as_bytes().iter();
    let mut decoded = Vec::with_capacity(path.len());
    while let Some(byte) = rest.next() {
        if *byte != b'%' {
            decoded.push(*byte);
            continue;
        }
        let digits = [rest.next(), rest.next()].map(|digit| digit.and_then(|digit| char::from(*digit).to_digit(16)));
        let [Some(high), Some(low)] = digits else { return Some("a '%' is not followed by two hexadecimal digits") };
        decoded.push((high * 16 + low) as u8);
    }
    if decoded.contains(&0) {
        return Some("a key cannot hold a NUL byte");
    }
    std::str::from_utf8(&decoded).is_err().then_some("a key must be UTF-8")
}

/// Decides who may go on, and gives him memory for his body.
pub(crate) struct Admission {
    /// Requests need no signature.
    pub(crate) open: bool,
    pub(crate) budget: Budget,
    /// Memory of a stream into a store, in bytes.
    pub(crate) stream: u64,
}

/// The body's memory, in the extensions of a request.
#[derive(Clone)]
pub(crate) struct Held(#[allow(dead_code, reason = "held, not used")] Allowance);

#[async_trait::async_trait]
impl S3Access for Admission {
    async fn check(&self, request: &mut S3AccessContext<'_>) -> S3Result<()> {
        if !self.open && request.credentials().is_none() {
            return Err(s3_error!(AccessDenied, "this server takes signed requests only"));
        }
        let text = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let length = text(CONTENT_LENGTH.as_str()).map(|value| value.parse::<u64>());
        let length = match (length, text(TRANSFER_ENCODING.as_str())) {
            (Some(Ok(length)), _) => Some(length),
            (Some(Err(_)), _) => return Err(s3_error!(InvalidRequest, "Content-Length is no number")),
            (None, Some(_)) => None,
            (None, None) => Some(0),
        };
        let bytes = match request.s3_op().name() {
            "PutObject" | "UploadPart" => {
                let chunked = text("x-amz-content-sha256").is_some_and(|value| value.starts_with(STREAMING));
                let chunk = if chunked { crate::rechunk::SIGNED_MAX } else { 0 };
                // A piece for the store, and what the library holds before it passes it on.
                length.map_or(u64::MAX, |length| length.min(self.stream) + length.min(chunk)).min(self.stream + chunk)
            }
            "GetObject" | "HeadObject" | "CopyObject" | "UploadPartCopy" => 0,
            name if name.starts_with("ListObjects") || matches!(name, "ListParts" | "ListMultipartUploads") => LISTING,
            _ if length.is_some_and(|length| length > XML_MAX) => {
                return Err(s3_error!(MaxMessageLengthExceeded, "a document of more than {} bytes", XML_MAX));
            }
            _ => length.unwrap_or(XML_MAX) * XML_WEIGHT,
        };
        if bytes > 0 {
            let held = Held(self.budget.take(bytes).await?);
            request.extensions_mut().insert(held);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{refuse, with_number, without_quotes, wrong_path};
    use hyper::Request;

    #[test]
    fn paths() {
        for path in ["/", "/bucket/key", "/b/%E2%82%AC", "/b/..%2f..%2Fetc", "/b//x", "/b/%25"] {
            assert_eq!(wrong_path(path), None, "{path}");
        }
        for path in ["/b/%", "/b/%2", "/b/%zz", "/b/%00", "/b/x%00y", "/b/%ff"] {
            wrong_path(path).expect(path);
        }
    }

    #[test]
    fn old_and_foreign_ways_in() {
        let request = |uri: &str, name: &str, value: &str| {
            Request::builder().uri(uri).header(name, value).body(()).expect("a request")
        };
        let code = |request| refuse(&request).map(|error| error.code().as_str().to_string());
        assert_eq!(code(request("/b/k", "authorization", "AWS4-HMAC-SHA256 x")), None);
        assert_eq!(code(request("/b/k", "authorization", "AWS AKID:sig")).as_deref(), Some("InvalidRequest"));
        assert_eq!(code(request("/b/k?AWSAccessKeyId=a&Signature=b&Expires=1", "x", "y")), None);
        let form = request("/b", "content-type", "Multipart/form-data; boundary=x");
        assert_eq!(code(form).as_deref(), Some("NotImplemented"));
        let stream = request("/b/k", "x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
        assert_eq!(code(stream).as_deref(), Some("NotImplemented"));
        assert_eq!(code(request("/b/%00", "x", "y")).as_deref(), Some("InvalidURI"));
        assert_eq!(code(request("/b/k", "content-md5", "")).as_deref(), Some("InvalidDigest"));
        for expires in ["-7", "0", "604801", "x", ""] {
            let url = format!("/b/k?X-Amz-Algorithm=a&X-Amz-Expires={expires}&X-Amz-Signature=b");
            assert_eq!(code(request(&url, "x", "y")).as_deref(), Some("AccessDenied"), "{expires}");
        }
        assert_eq!(code(request("/b/k?X-Amz-Expires=604800", "x", "y")), None);
    }

    #[test]
    fn documents() {
        assert_eq!(
            with_number("<a/><Error><Code>x</Code></Error>", "7").as_deref(),
            Some("<a/><Error><Code>x</Code><RequestId>7</RequestId></Error>")
        );
        assert_eq!(with_number("<Other/>", "7"), None);
        for tag in ["\"abc\"", "&quot;abc&quot;", "abc"] {
            let text = format!("<A><ETag>{tag}</ETag></A>");
            assert_eq!(without_quotes(&text).as_deref(), Some("<A><ETag>abc</ETag></A>"));
        }
    }
}
