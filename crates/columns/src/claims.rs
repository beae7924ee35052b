//! What a Parquet file claims, looked at before anybody believes it.
//!
//! The reader of the `parquet` crate allocates what lists, dictionaries and pages are said to hold, before it looks whether
//! the file has as much. So the descriptions (Thrift, in its compact form) are walked through first: of the whole file, and
//! of each page. Encodings whose claims are within a page (the DELTA ones) are refused.

use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Longest description of a file: enough for 1,000 groups of rows, which are 65 million records of ours.
const FOOTER_BYTES_MAX: u64 = 4 << 20;
/// Longest list in a description.
const LIST_LEN_MAX: u64 = 1 << 16;
/// Longest description of a page; statistics make it long.
const HEADER_BYTES_MAX: u64 = 64 << 10;
/// Longest page; most programs write 1 MiB.
const PAGE_BYTES_MAX: i64 = 64 << 20;
/// LZ4 makes no more than this of a byte.
const EXPANSION_MAX: i64 = 256;
/// Structures in structures, at most.
const DEPTH_MAX: u32 = 12;
/// PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED, RLE_DICTIONARY.
const ENCODINGS: [i64; 5] = [0, 2, 3, 4, 8];

/// How a file ends, behind the length of its description.
const MAGIC: [u8; 4] = *b"PAR1";
/// Bytes of that length and of the word behind it.
pub const TAIL_LEN: u64 = 8;

/// Where the description lies of what ends at byte `end` with `tail`; the error says why there is none.
pub fn description(tail: [u8; TAIL_LEN as usize], end: u64) -> Result<Range<u64>, String> {
    let fail = |what: &str| Err(format!("it is no Parquet file: {what}"));
    let [a, b, c, d, magic @ ..] = tail;
    if magic != MAGIC {
        return fail("it does not end with PAR1; was it closed?");
    }
    let len = u64::from(u32::from_le_bytes([a, b, c, d]));
    let to = end.saturating_sub(TAIL_LEN);
    let Some(from) = to.checked_sub(len) else { return fail("its description is longer than the file") };
    if len > FOOTER_BYTES_MAX {
        return Err(format!("its description has {len} bytes; at most {FOOTER_BYTES_MAX} are read"));
    }
    Ok(from..to)
}

/// Looks at the description of a file that ends at byte `end`; returns where it lies.
pub fn check_footer(file: &File, end: u64) -> Result<Range<u64>, String> {
    let Some(tail_at) = end.checked_sub(TAIL_LEN) else {
        return Err("it is no Parquet file: it is too short".into());
    };
    let mut tail = [0; TAIL_LEN as usize];
    file.read_exact_at(&mut tail, tail_at).map_err(|error| error.to_string())?;
    let range = description(tail, end)?;
    let mut footer = vec![0; (range.end - range.start) as usize];
    file.read_exact_at(&mut footer, range.start).map_err(|error| error.to_string())?;
    let mut children_max = 0;
    let walked = walk(&footer, &mut |path, value| {
        // The number of fields of a group, in the list of the schema.
        if path == [2, 5] {
            children_max = children_max.max(value);
        }
    });
    walked.map_err(|what| format!("its description is damaged: {what}"))?;
    if children_max > LIST_LEN_MAX as i64 {
        return Err("it is no Parquet file: a group of its schema has too many fields".into());
    }
    Ok(range)
}

/// Looks at the descriptions of all pages, which must lie in `part` of the file.
pub fn check_pages(file: &File, part: &Range<u64>, metadata: &ParquetMetaData) -> Result<(), String> {
    for (index, group) in metadata.row_groups().iter().enumerate() {
        for column in group.columns() {
            check_column(file, part, column)
                .map_err(|what| format!("column {} of group {index}: {what}", column.column_path()))?;
        }
    }
    Ok(())
}

fn check_column(file: &File, part: &Range<u64>, column: &ColumnChunkMetaData) -> Result<(), String> {
    let at = u64::try_from(column.dictionary_page_offset().unwrap_or(column.data_page_offset()));
    let range = at.ok().zip(u64::try_from(column.compressed_size()).ok());
    let range = range.filter(|(at, _)| *at >= part.start);
    let range = range.and_then(|(at, bytes)| Some((at, at.checked_add(bytes).filter(|end| *end <= part.end)?)));
    let Some((mut at, end)) = range else { return Err("it lies beyond the end of the file".into()) };
    while at < end {
        let mut header = vec![0; HEADER_BYTES_MAX.min(end - at) as usize];
        file.read_exact_at(&mut header, at).map_err(|error| error.to_string())?;
        let mut page = Page::default();
        let used = walk(&header, &mut |path, value| page.see(path, value));
        let used = used.map_err(|what| format!("the page at byte {at} is damaged: {what}"))?;
        page.check().map_err(|what| format!("the page at byte {at} {what}"))?;
        at = at.saturating_add(used as u64).saturating_add(page.packed.unsigned_abs());
        if at > end {
            return Err("its last page goes beyond its end".into());
        }
    }
    Ok(())
}

/// Claims of a page.
struct Page {
    bytes: i64,
    packed: i64,
    dictionary_len: i64,
    encoding: i64,
}

impl Default for Page {
    fn default() -> Page {
        Page { bytes: -1, packed: -1, dictionary_len: 0, encoding: 0 }
    }
}

impl Page {
    fn see(&mut self, path: &[i16], value: i64) {
        match path {
            [2] => self.bytes = value,
            [3] => self.packed = value,
            [7, 1] => self.dictionary_len = value,
            [5, 2] | [7, 2] | [8, 4] => self.encoding = value,
            _ => {}
        }
    }

    fn check(&self) -> Result<(), String> {
        let Page { bytes, packed, dictionary_len, encoding } = *self;
        if bytes < 0 || packed < 0 {
            return Err("has no length".into());
        }
        if bytes > PAGE_BYTES_MAX || bytes > packed.saturating_mul(EXPANSION_MAX) {
            return Err(format!("claims to hold {bytes} bytes in {packed}; at most {PAGE_BYTES_MAX} are read"));
        }
        if dictionary_len < 0 || dictionary_len > bytes {
            return Err(format!("claims to hold {dictionary_len} values in {bytes} bytes"));
        }
        if !ENCODINGS.contains(&encoding) {
            return Err(format!("has encoding {encoding}, which is not read; write it with PLAIN or a dictionary"));
        }
        Ok(())
    }
}

type Damaged = &'static str;

/// Walks through a structure and gives every number in it, by the numbers of the fields that lead to it. Returns its length.
fn walk(bytes: &[u8], see: &mut dyn FnMut(&[i16], i64)) -> Result<usize, Damaged> {
    let mut walk = Walk { bytes, path: Vec::new(), see };
    walk.structure(0)?;
    Ok(bytes.len() - walk.bytes.len())
}

struct Walk<'a> {
    /// What is left.
    bytes: &'a [u8],
    path: Vec<i16>,
    see: &'a mut dyn FnMut(&[i16], i64),
}

impl Walk<'_> {
    fn skip(&mut self, count: u64) -> Result<(), Damaged> {
        let count = usize::try_from(count).map_err(|_| "a length")?;
        self.bytes = self.bytes.get(count..).ok_or("it ends too early")?;
        Ok(())
    }

    fn byte(&mut self) -> Result<u8, Damaged> {
        let (first, rest) = self.bytes.split_first().ok_or("it ends too early")?;
        self.bytes = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u64, Damaged> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("a number is too long")
    }

    fn signed(&mut self) -> Result<i64, Damaged> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn structure(&mut self, depth: u32) -> Result<(), Damaged> {
        if depth > DEPTH_MAX {
            return Err("it is nested too deeply");
        }
        let mut id = 0i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            id = if head >> 4 == 0 { self.signed()? as i16 } else { id.wrapping_add(i16::from(head >> 4)) };
            self.path.push(id);
            // A flag of a structure is in its head.
            if !matches!(head & 15, 1 | 2) {
                self.value(head & 15, depth)?;
            }
            self.path.pop();
        }
    }

    fn value(&mut self, kind: u8, depth: u32) -> Result<(), Damaged> {
        match kind {
            1..=3 => self.skip(1),
            4..=6 => {
                let value = self.signed()?;
                (self.see)(&self.path, value);
                Ok(())
            }
            7 => self.skip(8),
            8 => {
                let len = self.number()?;
                self.skip(len)
            }
            9 | 10 => self.list(depth),
            12 => self.structure(depth + 1),
            // Descriptions have no maps.
            _ => Err("a field of unknown type"),
        }
    }

    fn list(&mut self, depth: u32) -> Result<(), Damaged> {
        let head = self.byte()?;
        let len = if head >> 4 == 15 { self.number()? } else { u64::from(head >> 4) };
        if len > LIST_LEN_MAX {
            return Err("a list is too long");
        }
        // A list of lists would go as deep as it likes.
        if matches!(head & 15, 9 | 10) && len > 0 {
            return Err("a list of lists");
        }
        (0..len).try_for_each(|_| self.value(head & 15, depth))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_fields() {
        // Field 2: 5; field 5: a structure with field 2: -1, a flag and a text; field 6: a list of two numbers.
        let bytes = [0x25, 10, 0x3c, 0x25, 1, 0x11, 0x18, 2, b'h', b'i', 0, 0x19, 0x25, 2, 4, 0, 99];
        let mut seen = Vec::new();
        let used = walk(&bytes, &mut |path, value| seen.push((path.to_vec(), value)));
        assert_eq!(used, Ok(bytes.len() - 1));
        assert_eq!(seen, [(vec![2], 5), (vec![5, 2], -1), (vec![6], 1), (vec![6], 2)]);
        assert!((0..bytes.len() - 1).all(|end| walk(&bytes[..end], &mut |_, _| {}).is_err()), "cut off");
        walk(&[0x1c; 40], &mut |_, _| {}).expect_err("deep");
        walk(&[0x19, 0xf5, 0xff, 0xff, 0xff, 0xff, 0x0f], &mut |_, _| {}).expect_err("long");
    }

    #[test]
    fn pages_claim_what_can_be() {
        let page = |bytes, packed, dictionary_len, encoding| Page { bytes, packed, dictionary_len, encoding }.check();
        page(1000, 10, 0, 0).expect("well packed");
        page(1000, 1000, 250, 8).expect("a dictionary");
        for (bytes, packed, dictionary_len, encoding) in
            [(-1, 5, 0, 0), (5, -1, 0, 0), (1 << 30, 1 << 30, 0, 0), (1 << 20, 100, 0, 0), (8, 8, 9, 0), (8, 8, 0, 5)]
        {
            page(bytes, packed, dictionary_len, encoding).expect_err("beyond belief");
        }
    }
}
