//! Arithmetic of GF(2^8) with the polynomial x^8+x^4+x^3+x^2+1 (0x11d) and the generator 2, as RAID-6 uses it.
//!
//! Everything works on lanes of bytes that the compiler turns into vector instructions: doubling is a shift and a masked
//! exclusive or, and so is what each bit adds to a product. There are no tables and no unsafe code.

/// Bytes that are held in registers together.
const LANE: usize = 64;
/// The same in a product, which needs registers for eight constants too.
const PRODUCT_LANE: usize = 32;
/// What is left of x^8.
const POLYNOMIAL: u8 = 0x1d;

/// All ones if the highest bit is set: such a byte is negative, and the arithmetic shift makes a mask of it.
#[inline(always)]
fn sign_mask(x: u8) -> u8 {
    ((x as i8) >> 7) as u8
}

#[inline(always)]
fn double(x: u8) -> u8 {
    (x << 1) ^ (sign_mask(x) & POLYNOMIAL)
}

/// The product of two elements.
pub fn multiply(a: u8, b: u8) -> u8 {
    (0..8).rev().fold(0, |product, bit| double(product) ^ if b >> bit & 1 == 1 { a } else { 0 })
}

/// 2 to the power of `exponent`: the factor of data block `exponent` in Q.
pub fn power(exponent: usize) -> u8 {
    (0..exponent).fold(1, |x, _| double(x))
}

/// The inverse of an element other than 0.
pub fn inverse(a: u8) -> u8 {
    // a^254 = a^-1, as a^255 = 1.
    (0..254).fold(1, |x, _| multiply(x, a))
}

/// `to ^= from`.
///
/// # Panics
/// If the lengths differ.
pub fn add(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "both are one block");
    to.iter_mut().zip(from).for_each(|(to, from)| *to ^= from);
}

/// `to ^= factor * from`.
///
/// A product is linear in the bits of its second factor: for each bit that a byte of `from` has, a constant is added. The highest
/// bit of a byte becomes a mask by one comparison, and a shift brings the next one there, so that a bit costs four vector
/// instructions; Horner's rule over the bits of `factor`, with a doubling in each step, costs six.
///
/// # Panics
/// If the lengths differ.
pub fn add_product(to: &mut [u8], from: &[u8], factor: u8) {
    assert_eq!(to.len(), from.len(), "both are one block");
    if factor == 1 {
        return add(to, from);
    }
    let terms: [u8; 8] = std::array::from_fn(|bit| multiply(factor, 0x80 >> bit));
    let (to, to_rest) = to.as_chunks_mut::<PRODUCT_LANE>();
    let (from, from_rest) = from.as_chunks::<PRODUCT_LANE>();
    for (to, from) in to.iter_mut().zip(from) {
        let (mut sum, mut bits) = (*to, *from);
        for term in terms {
            for at in 0..PRODUCT_LANE {
                sum[at] ^= sign_mask(bits[at]) & term;
                bits[at] <<= 1;
            }
        }
        *to = sum;
    }
    to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| *to ^= multiply(*from, factor));
}

/// P, the sum of all data, and Q, the sum of 2^i times data i. Lengths must be equal and multiples of 64.
///
/// By Horner's rule, from the last data block to the first, four blocks in a pass: blocks are read from front to back, which
/// is as fast as memory gives them, and P and Q, which each pass reads and writes, stay in the nearest cache.
///
/// # Panics
/// If they are not.
pub fn p_and_q(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    let len = p.len();
    assert!(len.is_multiple_of(LANE), "blocks consist of whole lanes");
    assert!(data.iter().all(|data| data.len() == len) && q.len() == len, "all have one length");
    p.fill(0);
    q.fill(0);
    let passes = data.rchunks(PASS);
    for pass in passes {
        match pass {
            [a, b, c, d] => add_pass([d, c, b, a], p, q),
            [a, b, c] => add_pass([c, b, a], p, q),
            [a, b] => add_pass([b, a], p, q),
            [a] => add_pass([a], p, q),
            _ => {}
        }
    }
}

/// Blocks of data that are added to P and Q in one pass.
const PASS: usize = 4;

/// Adds blocks, of which the last comes first.
#[inline(always)]
fn add_pass<const N: usize>(data: [&[u8]; N], p: &mut [u8], q: &mut [u8]) {
    let (p, q) = (p.as_chunks_mut::<LANE>().0, q.as_chunks_mut::<LANE>().0);
    let data = data.map(|data| &data.as_chunks::<LANE>().0[..p.len()]);
    for (lane, (p, q)) in p.iter_mut().zip(q).enumerate() {
        let (mut sum, mut weighted) = (*p, *q);
        for data in data {
            let data = &data[lane];
            for at in 0..LANE {
                sum[at] ^= data[at];
                weighted[at] = double(weighted[at]) ^ data[at];
            }
        }
        (*p, *q) = (sum, weighted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_fuzz::incompressible;

    #[test]
    fn it_is_a_field() {
        assert_eq!((power(1), power(8), power(255)), (2, POLYNOMIAL, 1));
        assert!((1..255).all(|exponent| power(exponent) != 1), "2 generates all 255 elements");
        for a in 1..=255 {
            assert_eq!(multiply(a, inverse(a)), 1);
            for b in 0..=255 {
                assert_eq!(multiply(a, b), multiply(b, a));
                assert_eq!(multiply(a, b ^ 0x53), multiply(a, b) ^ multiply(a, 0x53));
            }
        }
    }

    #[test]
    fn vectors_agree_with_single_bytes() {
        let blocks: Vec<Vec<u8>> = (0..10).map(|seed| incompressible(seed, 256)).collect();
        let data: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        let (mut p, mut q) = (vec![0; 256], vec![0; 256]);
        p_and_q(&data, &mut p, &mut q);
        for at in 0..256 {
            assert_eq!(p[at], data.iter().fold(0, |sum, data| sum ^ data[at]));
            let weighted = |sum, (index, data): (usize, &&[u8])| sum ^ multiply(power(index), data[at]);
            assert_eq!(q[at], data.iter().enumerate().fold(0, weighted));
        }
    }

    /// All products, against a table made in another way, by adding logarithms; in whole lanes, and in what is left of one.
    #[test]
    fn products_of_blocks_are_those_of_a_table() {
        let powers: Vec<u8> = (0..255).map(power).collect();
        let log = |x: u8| powers.iter().position(|power| *power == x);
        let logs: Vec<Option<usize>> = (0..=255).map(log).collect();
        let product = |a: u8, b: u8| match (logs[usize::from(a)], logs[usize::from(b)]) {
            (Some(a), Some(b)) => powers[(a + b) % 255],
            _ => 0,
        };
        let all: Vec<u8> = (0..=255).collect();
        for factor in 0..=255 {
            for len in [256, 256 - PRODUCT_LANE / 2] {
                let before = incompressible(u64::from(factor), len);
                let mut to = before.clone();
                add_product(&mut to, &all[256 - len..], factor);
                let same = (0..len).all(|at| to[at] == before[at] ^ product(all[256 - len + at], factor));
                assert!(same, "factor {factor}, {len} bytes");
            }
        }
    }
}
