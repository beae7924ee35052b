//! Arithmetic of GF(2^8) with the polynomial x^8+x^4+x^3+x^2+1 (0x11d) and the generator 2, as RAID-6 uses it.
//!
//! Everything works on lanes of bytes that the compiler turns into vector instructions: doubling is a shift and a masked
//! exclusive or, and every product is made of doublings. There are no tables and no unsafe code.

/// Bytes that are held in registers together.
const LANE: usize = 64;
/// What is left of x^8.
const POLYNOMIAL: u8 = 0x1d;

#[inline(always)]
fn double(x: u8) -> u8 {
    // A byte whose highest bit is set is negative: the arithmetic shift makes a mask of it.
    (x << 1) ^ (((x as i8) >> 7) as u8 & POLYNOMIAL)
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
/// # Panics
/// If the lengths differ.
pub fn add_product(to: &mut [u8], from: &[u8], factor: u8) {
    assert_eq!(to.len(), from.len(), "both are one block");
    if factor == 1 {
        return add(to, from);
    }
    let (to, to_rest) = to.as_chunks_mut::<LANE>();
    let (from, from_rest) = from.as_chunks::<LANE>();
    for (to, from) in to.iter_mut().zip(from) {
        let mut product = [0; LANE];
        for bit in (0..8).rev() {
            let mask = 0u8.wrapping_sub(factor >> bit & 1);
            product.iter_mut().zip(from).for_each(|(product, from)| *product = double(*product) ^ (from & mask));
        }
        to.iter_mut().zip(product).for_each(|(to, product)| *to ^= product);
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
        for factor in 0..=255 {
            let mut to = blocks[0][..200].to_vec();
            add_product(&mut to, &blocks[1][..200], factor);
            let same = (0..200).all(|at| to[at] == blocks[0][at] ^ multiply(blocks[1][at], factor));
            assert!(same, "factor {factor}");
        }
    }
}
