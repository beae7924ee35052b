//! Numbers and bytes as frames hold them: seven bits to a byte, the low ones first.

/// Bytes that cannot be what they claim to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Damage(pub &'static str);

/// Appends a number.
pub fn put_u64(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Appends a number that may be negative; those near zero are short.
pub fn put_i64(to: &mut Vec<u8>, value: i64) {
    put_u64(to, ((value << 1) ^ (value >> 63)) as u64);
}

/// Appends bytes with their number.
pub fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

/// Reads what the functions above wrote.
pub struct Take<'a>(pub &'a [u8]);

impl<'a> Take<'a> {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A byte.
    pub fn u8(&mut self) -> Result<u8, Damage> {
        let (first, rest) = self.0.split_first().ok_or(Damage("a frame ends within an entry"))?;
        self.0 = rest;
        Ok(*first)
    }

    /// A number.
    pub fn u64(&mut self) -> Result<u64, Damage> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Damage("a number has more than 64 bits"))
    }

    /// A number that may be negative.
    pub fn i64(&mut self) -> Result<i64, Damage> {
        let value = self.u64()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A number that must fit.
    pub fn u32(&mut self) -> Result<u32, Damage> {
        u32::try_from(self.u64()?).map_err(|_| Damage("a number has more than 32 bits"))
    }

    /// Bytes, at most `max`.
    pub fn bytes(&mut self, max: usize) -> Result<&'a [u8], Damage> {
        let len = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        if len > max {
            return Err(Damage("a text is too long"));
        }
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Damage("a frame ends within a text"))?;
        self.0 = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(unsigned: u64, signed: i64, shift in 0..64u32) {
            let mut bytes = Vec::new();
            put_u64(&mut bytes, unsigned >> shift);
            put_i64(&mut bytes, signed >> shift);
            put_bytes(&mut bytes, b"abc");
            let mut take = Take(&bytes);
            prop_assert_eq!(take.u64(), Ok(unsigned >> shift));
            prop_assert_eq!(take.i64(), Ok(signed >> shift));
            prop_assert_eq!(take.bytes(3), Ok(&b"abc"[..]));
            prop_assert!(take.is_empty());
        }
    }

    #[test]
    fn what_is_too_long_is_refused() {
        assert_eq!(Take(&[0xff; 11]).u64(), Err(Damage("a number has more than 64 bits")));
        assert_eq!(Take(&[0xff, 0x01]).u64(), Ok(255));
        assert_eq!(Take(&[0x80]).u64(), Err(Damage("a frame ends within an entry")));
        assert_eq!(Take(&[4, 1, 2]).bytes(4), Err(Damage("a frame ends within a text")));
        assert_eq!(Take(&[4, 1, 2, 3, 4]).bytes(3), Err(Damage("a text is too long")));
    }
}
