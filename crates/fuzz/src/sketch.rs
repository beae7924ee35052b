//! Images as text, of which people see what changed: for tests that a format stays what it was.

use std::fmt::Write;

/// So many zeros end a stretch.
const GAP: usize = 8;
/// Bytes on a line.
const LINE: usize = 48;

/// What is in an image besides zeros: a line for each stretch, its place and its bytes in hexadecimal.
pub fn sketch(image: &[u8]) -> String {
    let mut lines: Vec<(usize, usize)> = Vec::new();
    for at in (0..image.len()).filter(|at| image[*at] != 0) {
        match lines.last_mut() {
            Some((start, end)) if at < *end + GAP && at < *start + LINE => *end = at + 1,
            _ => lines.push((at, at + 1)),
        }
    }
    let mut text = String::new();
    for (start, end) in lines {
        write!(text, "{start:x}: ").expect("strings grow");
        image[start..end].iter().for_each(|byte| write!(text, "{byte:02x}").expect("strings grow"));
        text.push('\n');
    }
    text
}

/// The image of `len` bytes that a text describes. Lines without a colon and a space are for people.
///
/// # Panics
/// If it describes none.
pub fn image_of(text: &str, len: usize) -> Vec<u8> {
    let mut image = vec![0; len];
    for (place, bytes) in text.lines().filter_map(|line| line.trim().split_once(": ")) {
        let start = usize::from_str_radix(place, 16).expect("a place in hexadecimal");
        let byte = |pair: &[u8]| {
            let pair = std::str::from_utf8(pair).expect("ASCII");
            u8::from_str_radix(pair, 16).expect("a byte in hexadecimal")
        };
        let bytes: Vec<u8> = bytes.as_bytes().chunks(2).map(byte).collect();
        image[start..start + bytes.len()].copy_from_slice(&bytes);
    }
    image
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config, noise};
    use proptest::prelude::*;

    #[test]
    fn it_shows_what_is_not_zero() {
        let mut image = vec![0; 5000];
        (image[0], image[9], image[4097]) = (1, 0xab, 0xff);
        assert_eq!(sketch(&image), "0: 01\n9: ab\n1001: ff\n");
        image[8] = 2;
        assert_eq!(sketch(&image), "0: 010000000000000002ab\n1001: ff\n");
    }

    proptest! {
        #![proptest_config(config(200))]
        #[test]
        fn it_tells_the_whole_image(mut image in noise(700), zeros in prop::collection::vec(0..700usize, 0..20)) {
            for start in zeros {
                image.iter_mut().skip(start).take(40).for_each(|byte| *byte = 0);
            }
            prop_assert_eq!(image_of(&sketch(&image), image.len()), image);
        }
    }
}
