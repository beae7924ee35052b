use super::{Lanes, Md5};
use bytes::Bytes;
use md5::Digest;
use proptest::prelude::*;

fn hex(digest: [u8; 16]) -> String {
    crate::sums::hex(&digest)
}

/// RFC 1321, section A.5.
#[test]
fn published_digests() {
    for (text, digest) in [
        ("", "d41d8cd98f00b204e9800998ecf8427e"),
        ("abc", "900150983cd24fb0d6963f7d28e17f72"),
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", "d174ab98d277d9f5a5611c2c9f419d9f"),
    ] {
        let mut md5 = Md5::new();
        md5.update(text.as_bytes());
        assert_eq!(hex(md5.finish()), digest);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 32, ..ProptestConfig::default() })]

    /// Streams of all lengths, cut anywhere, at the same time: each has the digest that it has alone.
    #[test]
    fn streams_together(
        streams in proptest::collection::vec(proptest::collection::vec(0usize..70_000, 0..6), 1..10),
        seed: u8,
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
        let lanes = Lanes::default();
        let tasks: Vec<_> = (0u8..)
            .zip(streams)
            .map(|(number, pieces)| {
                let lanes = lanes.clone();
                runtime.spawn(async move {
                    let (mut md5, mut known) = (Md5::new(), md5::Md5::new());
                    for len in pieces {
                        let byte = |at: usize| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ number ^ seed;
                        let piece: Bytes = (0..len).map(byte).collect();
                        lanes.update(&mut md5, &piece).await;
                        known.update(&piece);
                    }
                    (md5.finish(), known.finalize().into())
                })
            })
            .collect();
        for task in tasks {
            let (digest, known): ([u8; 16], [u8; 16]) = runtime.block_on(task).expect("no panic");
            prop_assert_eq!(hex(digest), hex(known));
        }
    }
}
