//! Signatures, with the examples that AWS publishes ("Signature Calculations for the Authorization Header", for a payload in
//! one chunk, in many, and with trailers). They are of 2013, so the server is told to take any time.

mod common;

use ashlar_s3::{Credentials, Limits, Options};
use common::{KEY, SECRET, Served};
use std::time::Duration;

const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn served() -> Served {
    let limits = Limits { skew: Duration::from_secs(100 * 365 * 86_400), ..Limits::default() };
    let domain = Some("s3.amazonaws.com".into());
    let served = Served::with(Options { credentials: Credentials::one(KEY, SECRET), domain, limits, tls: None });
    served.bucket("examplebucket");
    served
}

/// A request as text, with the authorization of an example.
fn request(line: &str, headers: &[(&str, &str)], signed: &str, signature: &str, body: &[u8]) -> Vec<u8> {
    let mut text = format!("{line} HTTP/1.1\r\nConnection: close\r\nx-amz-date: 20130524T000000Z\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!(
        "Authorization: AWS4-HMAC-SHA256 Credential={KEY}/20130524/us-east-1/s3/aws4_request,SignedHeaders={signed},\
         Signature={signature}\r\n\r\n"
    );
    [text.as_bytes(), body].concat()
}

#[test]
fn published_examples() {
    let served = served();
    let host = ("Host", "examplebucket.s3.amazonaws.com");
    let put = request(
        "PUT /test%24file.text",
        &[
            host,
            ("Date", "Fri, 24 May 2013 00:00:00 GMT"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ("x-amz-content-sha256", "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"),
            ("Content-Length", "21"),
        ],
        "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        b"Welcome to Amazon S3.",
    );
    let answer = served.raw(&put);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // The same with another body: the signature holds, the body does not.
    let forged = [&put[..put.len() - 21], b"Welcome to Amazon S4."].concat();
    let answer = served.raw(&forged);
    assert!(answer.contains("XAmzContentSHA256Mismatch"), "{answer}");
    let get = |signature: &str| {
        request(
            "GET /test.txt",
            &[host, ("Range", "bytes=0-9"), ("x-amz-content-sha256", EMPTY)],
            "host;range;x-amz-content-sha256;x-amz-date",
            signature,
            b"",
        )
    };
    let answer = served.raw(&get("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"));
    assert!(answer.contains("NoSuchKey"), "signed well, and not there: {answer}");
    let answer = served.raw(&get("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb42"));
    assert!(answer.contains("SignatureDoesNotMatch"), "{answer}");
    let list = request(
        "GET /?max-keys=2&prefix=J",
        &[host, ("x-amz-content-sha256", EMPTY)],
        "host;x-amz-content-sha256;x-amz-date",
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        b"",
    );
    let answer = served.raw(&list);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("<MaxKeys>2</MaxKeys>"), "{answer}");
    let lifecycle = request(
        "GET /?lifecycle",
        &[host, ("x-amz-content-sha256", EMPTY)],
        "host;x-amz-content-sha256;x-amz-date",
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        b"",
    );
    let answer = served.raw(&lifecycle);
    assert!(answer.contains("NotImplemented"), "signed well, and not done here: {answer}");
}

/// The example of many chunks: 65,536 and 1,024 times the letter a.
fn chunks(signatures: [&str; 3], end: &str) -> Vec<u8> {
    let mut body = Vec::new();
    for (size, signature) in [65_536, 1024, 0].into_iter().zip(signatures) {
        body.extend_from_slice(format!("{size:x};chunk-signature={signature}\r\n").as_bytes());
        body.extend(std::iter::repeat_n(b'a', size));
        if size > 0 {
            body.extend_from_slice(b"\r\n");
        }
    }
    body.extend_from_slice(end.as_bytes());
    body
}

#[test]
fn published_example_of_chunks() {
    let served = served();
    let put = |chunk: &str| {
        let body = chunks(
            [
                chunk,
                "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
                "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
            ],
            "\r\n",
        );
        request(
            "PUT /examplebucket/chunkObject.txt",
            &[
                ("Host", "s3.amazonaws.com"),
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
                ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
                ("Content-Encoding", "aws-chunked"),
                ("x-amz-decoded-content-length", "66560"),
                ("Content-Length", "66824"),
            ],
            "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;\
             x-amz-storage-class",
            "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
            &body,
        )
    };
    let good = put("ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648");
    let answer = served.raw(&put("ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288649"));
    assert!(answer.contains("SignatureDoesNotMatch"), "{answer}");
    let buckets = served.buckets.clone();
    let store = served
        .real
        .block_on(async move { ashlar_s3::Buckets::open(&*buckets, "examplebucket").await.expect("the bucket") });
    let name = ashlar_objects::Name::new(&b"chunkObject.txt"[..]).expect("a name");
    let (asked, key) = (store.clone(), name.clone());
    let refused = served.real.block_on(async move { asked.stat(&key).await });
    refused.expect_err("a chunk with a wrong signature makes no object");
    let answer = served.raw(&good);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let stat = served.real.block_on(async move { store.stat(&name).await }).expect("the object");
    assert_eq!(stat.size, 66_560);
}

#[test]
fn published_example_of_trailers() {
    let served = served();
    let put = |sum: &str| {
        let end = format!(
            "x-amz-checksum-crc32c:{sum}\r\n\
             x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n"
        );
        let body = chunks(
            [
                "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
                "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
                "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
            ],
            &end,
        );
        let length = body.len().to_string();
        request(
            "PUT /examplebucket/chunkObject.txt",
            &[
                ("Host", "s3.amazonaws.com"),
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
                ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"),
                ("Content-Encoding", "aws-chunked"),
                ("x-amz-decoded-content-length", "66560"),
                ("x-amz-trailer", "x-amz-checksum-crc32c"),
                ("Content-Length", &length),
            ],
            "content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class;\
             x-amz-trailer",
            "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
            &body,
        )
    };
    let answer = served.raw(&put("sOO8/Q=="));
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("sOO8/Q=="), "{answer}");
    let answer = served.raw(&put("sOO8/A=="));
    assert!(answer.contains("SignatureDoesNotMatch"), "{answer}");
}
