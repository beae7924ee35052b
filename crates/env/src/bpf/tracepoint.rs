//! Tracepoints as this kernel has them: their numbers, and where their records have what.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where tracefs is mounted, if it is.
const HOMES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// A tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    /// Its number, for [`Attached::numbered`](super::Attached::numbered).
    pub number: u64,
    fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    name: String,
    offset: i16,
    len: usize,
}

impl Tracepoint {
    /// Finds one by its group and name, as in `filemap/mm_filemap_add_to_page_cache`, in tracefs, which is mounted for that, if
    /// nobody did, and unmounted again.
    pub fn find(name: &str) -> io::Result<Tracepoint> {
        match HOMES.map(Path::new).into_iter().find(|home| home.join("events").is_dir()) {
            Some(home) => Tracepoint::read(home, name),
            None => Tracepoint::read(&Mounted::new()?.0, name),
        }
    }

    fn read(home: &Path, name: &str) -> io::Result<Tracepoint> {
        let home = home.join("events").join(name);
        let of = |file: &str| std::fs::read_to_string(home.join(file));
        let (number, format) = of("id").and_then(|id| Ok((id, of("format")?))).map_err(|error| {
            let text = format!("the tracepoint {name}: {error}; this kernel has it not, or not for us");
            io::Error::new(error.kind(), text)
        })?;
        parse(&number, &format).ok_or_else(|| io::Error::other(format!("the tracepoint {name} has an unknown format")))
    }

    /// Where a field of so many bytes is in the record; `None` if there is none.
    pub fn field(&self, name: &str, len: usize) -> Option<i16> {
        self.fields.iter().find(|field| field.name == name && field.len == len).map(|field| field.offset)
    }
}

/// Tracefs in a directory that nobody else can enter.
struct Mounted(PathBuf);

impl Mounted {
    fn new() -> io::Result<Mounted> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("ashlar-tracefs-{process}-{number}"));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let mounted = Mounted(path);
        let done = Command::new("mount").args(["-t", "tracefs", "none"]).arg(&mounted.0).output()?;
        if done.status.success() {
            return Ok(mounted);
        }
        let said = String::from_utf8_lossy(&done.stderr).trim().to_string();
        Err(io::Error::other(format!("tracefs cannot be mounted: {said}")))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn parse(number: &str, format: &str) -> Option<Tracepoint> {
    let field = |line: &str| {
        let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
        let name = parts.next()?.rsplit([' ', '*']).next()?.to_string();
        let offset = parts.next()?.strip_prefix("offset:")?.parse().ok()?;
        Some(Field { name, offset, len: parts.next()?.strip_prefix("size:")?.parse().ok()? })
    };
    Some(Tracepoint { number: number.trim().parse().ok()?, fields: format.lines().filter_map(field).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_read() {
        let format = "name: mm_filemap_add_to_page_cache\nID: 600\nformat:\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:dev_t s_dev;\toffset:32;\tsize:4;\tsigned:0;\n\
            \tfield:unsigned char order;\toffset:36;\tsize:1;\tsigned:0;\n\n\
            print fmt: \"dev %d\", REC->s_dev\n";
        let found = parse("600\n", format).expect("a number");
        assert_eq!(found.number, 600);
        assert_eq!((found.field("s_dev", 4), found.field("order", 1)), (Some(32), Some(36)));
        assert_eq!((found.field("s_dev", 8), found.field("pfn", 8)), (None, None));
        assert_eq!(parse("none", format), None);
    }
}
