//! Objects of an S3 bucket: listed with continuation, read in ranges.
//!
//! Requests are signed in their URL and so may be repeated; what fails for a moment (5xx, 429, a broken connection) is tried
//! again. A server is hostile input: answers are bounded, and a list that does not end is refused.

use crate::scan::wait_until;
use rusty_s3::actions::{ListObjectsV2, S3Action};
use rusty_s3::{Bucket as Place, Credentials, UrlStyle};
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ureq::{Agent, Body, http::Response};

/// How long a signed URL is good for; each is used at once.
const VALID: Duration = Duration::from_secs(300);
/// Tries of one request.
const TRIES: u32 = 4;
/// Wait before the second try; it doubles with each.
const WAIT: Duration = Duration::from_millis(200);
/// Longest page of a list; servers give 1000 objects, of which each takes less than 4 KiB.
const PAGE_MAX: u64 = 8 << 20;
/// Longest text of an error that is shown.
const ERROR_MAX: u64 = 64 << 10;

/// Where a bucket is, and who asks.
#[derive(Clone, Default)]
pub struct Access {
    /// URL of the server; Amazon's if there is none.
    pub endpoint: Option<String>,
    /// Region.
    pub region: String,
    /// Key, secret and token of a session; without them, requests are not signed.
    pub credentials: Option<(String, String, Option<String>)>,
}

impl std::fmt::Debug for Access {
    /// Without what is secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key = self.credentials.as_ref().map(|(key, ..)| key);
        f.debug_struct("Access")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("key", &key)
            .finish()
    }
}

impl Access {
    /// What the usual variables of the environment say: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_REGION`,
    /// `AWS_DEFAULT_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Access {
        let of = |names: [&str; 2]| names.into_iter().find_map(|name| variable(name).filter(|value| !value.is_empty()));
        let pair = variable("AWS_ACCESS_KEY_ID").zip(variable("AWS_SECRET_ACCESS_KEY"));
        Access {
            endpoint: of(["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]),
            region: of(["AWS_REGION", "AWS_DEFAULT_REGION"]).unwrap_or_else(|| "us-east-1".into()),
            credentials: pair.map(|(key, secret)| (key, secret, variable("AWS_SESSION_TOKEN"))),
        }
    }
}

/// Something is wrong with a bucket.
#[derive(Debug, thiserror::Error)]
pub enum BucketError {
    /// The name.
    #[error("{0:?} names no bucket: write s3://BUCKET or s3://BUCKET/PREFIX")]
    Name(String),
    /// The address of the server.
    #[error("AWS_ENDPOINT_URL is {0:?}, which is no address of a server ({1}); write http://HOST:PORT or https://HOST")]
    Endpoint(String, String),
    /// The list.
    #[error("s3://{bucket} cannot be listed on {server}: {what}; AWS_ENDPOINT_URL names another server")]
    List {
        /// Its name.
        bucket: String,
        /// The server that was asked.
        server: String,
        /// What the server said.
        what: String,
    },
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// An object of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its key.
    pub key: String,
    /// Its bytes.
    pub size: u64,
    /// When it was written, in seconds since 1970; zero if the server does not say.
    pub written: i64,
}

/// A bucket, or the part of it whose keys begin with a prefix.
pub struct Bucket {
    place: Place,
    prefix: String,
    credentials: Option<Credentials>,
    agent: Agent,
}

/// Whether a path names a bucket.
pub fn is_bucket(path: &str) -> bool {
    path.starts_with("s3://")
}

impl Bucket {
    /// The bucket of a name like `s3://bucket/prefix`. Nothing is asked yet.
    pub fn new(name: &str, access: &Access) -> Result<Bucket, BucketError> {
        let wrong = || BucketError::Name(name.to_string());
        let rest = name.strip_prefix("s3://").ok_or_else(wrong)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(wrong());
        }
        let (endpoint, style) = match &access.endpoint {
            Some(endpoint) => (endpoint.clone(), UrlStyle::Path),
            None => (format!("https://s3.{}.amazonaws.com", access.region), UrlStyle::VirtualHost),
        };
        let url = endpoint.parse().map_err(|error| BucketError::Endpoint(endpoint.clone(), format!("{error}")))?;
        let place = Place::new(url, style, bucket.to_string(), access.region.clone());
        let place = place.map_err(|error| BucketError::Endpoint(endpoint, error.to_string()))?;
        let credentials = access.credentials.clone().map(|(key, secret, token)| match token {
            Some(token) => Credentials::new_with_token(key, secret, token),
            None => Credentials::new(key, secret),
        });
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_recv_body(Some(Duration::from_secs(120)))
            .max_idle_connections_per_host(64)
            .build();
        Ok(Bucket { place, prefix: prefix.to_string(), credentials, agent: config.into() })
    }

    /// `s3://` and its name.
    pub fn name(&self) -> String {
        format!("s3://{}", self.place.name())
    }

    /// Calls `each` with all objects, in the order of their keys, for as long as it likes.
    pub fn list(&self, stop: &AtomicBool, each: &mut dyn FnMut(Object) -> bool) -> Result<(), BucketError> {
        let fail = |what: String| {
            let (bucket, server) = (self.place.name().to_string(), self.place.base_url().to_string());
            BucketError::List { bucket, server, what }
        };
        let mut token: Option<String> = None;
        loop {
            let mut list = self.place.list_objects_v2(self.credentials.as_ref());
            list.with_prefix(self.prefix.as_str());
            if let Some(token) = &token {
                list.with_continuation_token(token.clone());
            }
            let response = self.get(&list.sign(VALID), None, stop).map_err(|error| fail(error.to_string()))?;
            if stop.load(Ordering::Acquire) {
                return Err(BucketError::Interrupted);
            }
            let mut text = Vec::new();
            let read = response.into_body().into_reader().take(PAGE_MAX + 1).read_to_end(&mut text);
            read.map_err(|error| fail(error.to_string()))?;
            if text.len() as u64 > PAGE_MAX {
                return Err(fail(format!("a page of the list has more than {PAGE_MAX} bytes")));
            }
            let page = ListObjectsV2::parse_response(&String::from_utf8_lossy(&text))
                .map_err(|error| fail(format!("the server does not answer as S3 does: {error}")))?;
            for content in page.contents {
                let written = content.last_modified.as_deref().and_then(seconds).unwrap_or(0);
                if !each(Object { key: content.key, size: content.size.unwrap_or(0), written }) {
                    return Ok(());
                }
            }
            match page.next_continuation_token {
                None => return Ok(()),
                next if next == token => return Err(fail("the list goes on where it was: it does not end".into())),
                next => token = next,
            }
        }
    }

    /// Reads a range of an object of `size` bytes.
    pub fn read_at(&self, key: &str, size: u64, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        let len = (to.len() as u64).min(size.saturating_sub(offset)) as usize;
        if len == 0 {
            return Ok(0);
        }
        if key.split('/').any(|part| part == "." || part == "..") {
            // URLs drop them, and another object would be read.
            return Err(io::Error::other(
                "a part of its key is . or .., which no URL can carry; copy it to another key",
            ));
        }
        let to = to.get_mut(..len).unwrap_or_default();
        let url = self.place.get_object(self.credentials.as_ref(), key).sign(VALID);
        let range = format!("bytes={offset}-{}", offset + len as u64 - 1);
        let response = self.get(&url, Some(&range), &AtomicBool::new(false))?;
        let total = response.headers().get("content-range").and_then(|value| value.to_str().ok());
        let total = total.and_then(|value| value.rsplit('/').next()).and_then(|total| total.parse::<u64>().ok());
        // Without ranges all of it comes, which is right only for the beginning.
        if response.status() != 206 && offset > 0 {
            return Err(io::Error::other("the server gives no ranges of objects"));
        }
        if total.is_some_and(|total| total != size) {
            return Err(io::Error::other("it changed since it was listed"));
        }
        response.into_body().into_reader().read_exact(to)?;
        Ok(len)
    }

    /// A GET, tried several times.
    fn get(&self, url: &impl ToString, range: Option<&str>, stop: &AtomicBool) -> io::Result<Response<Body>> {
        let mut wait = WAIT;
        for left in (0..TRIES).rev() {
            let mut request = self.agent.get(url.to_string());
            if let Some(range) = range {
                request = request.header("range", range);
            }
            let error = match request.call() {
                Ok(response) if response.status().is_success() => return Ok(response),
                Ok(response) => {
                    let status = response.status();
                    let again = status.is_server_error() || status == 429;
                    let error = refusal(response);
                    if !again {
                        return Err(error);
                    }
                    error
                }
                Err(error) => io::Error::other(error),
            };
            if left == 0 || stop.load(Ordering::Acquire) {
                return Err(error);
            }
            wait_until(Instant::now() + wait, stop);
            wait *= 2;
        }
        Err(io::ErrorKind::Other.into())
    }
}

/// What a server said when it refused.
fn refusal(response: Response<Body>) -> io::Error {
    let status = response.status();
    let mut text = String::new();
    // Half of an explanation is one too.
    let _ = response.into_body().into_reader().take(ERROR_MAX).read_to_string(&mut text);
    let between = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once('<')?.0.to_string())
    };
    let said = [between("Code"), between("Message")].into_iter().flatten().collect::<Vec<_>>().join(": ");
    let hint = match status.as_u16() {
        403 => {
            "; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, and that they may list and read"
        }
        301 | 307 | 400 => "; check AWS_REGION and AWS_ENDPOINT_URL",
        _ => "",
    };
    let kind = match status.as_u16() {
        403 => io::ErrorKind::PermissionDenied,
        404 => io::ErrorKind::NotFound,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("the server answers {status} {said}{hint}"))
}

/// Seconds since 1970 of a time like `2009-10-12T17:50:30.000Z`.
fn seconds(text: &str) -> Option<i64> {
    let (day, time) = text.split_once('T')?;
    let number = |text: &str| text.parse::<i64>().ok().filter(|number| (0..10_000).contains(number));
    let mut day = day.splitn(3, '-').map(number);
    let (year, month, day) = (day.next()??, day.next()??, day.next()??);
    let mut time = time.trim_end_matches('Z').split(':').map(|part| number(part.split('.').next().unwrap_or(part)));
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since 1970-01-01, in years that begin in March: Howard Hinnant, "chrono-compatible low-level date algorithms".
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests;
