//! Files that get their names when they are whole.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file beside the one that it will be. Dropped before it is whole, it is removed. Errors name the file.
pub struct Partial {
    to: PathBuf,
    beside: PathBuf,
    file: File,
    whole: bool,
}

impl Partial {
    /// Makes the file.
    pub fn create(to: &Path) -> io::Result<Partial> {
        let mut beside = to.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        let file = File::create(&beside).map_err(|error| of(to, &error))?;
        Ok(Partial { to: to.into(), beside, file, whole: false })
    }

    /// As [`Partial::create`], for many small pieces.
    pub fn buffered(to: &Path) -> io::Result<BufWriter<Partial>> {
        Ok(BufWriter::with_capacity(1 << 20, Partial::create(to)?))
    }

    /// Writes a whole file.
    pub fn write(to: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = Partial::create(to)?;
        file.write_all(bytes)?;
        file.finish()
    }

    /// It is whole: makes it durable and puts it in its place.
    pub fn finish(mut self) -> io::Result<()> {
        let placed = self.file.sync_all().and_then(|()| std::fs::rename(&self.beside, &self.to));
        self.whole = placed.is_ok();
        placed.map_err(|error| of(&self.to, &error))
    }

    /// As [`Partial::finish`], with what is still in the buffer.
    pub fn finish_buffered(buffer: BufWriter<Partial>) -> io::Result<()> {
        buffer.into_inner().map_err(io::IntoInnerError::into_error)?.finish()
    }
}

fn of(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Write for Partial {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).map_err(|error| of(&self.to, &error))
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.whole {
            let _ = std::fs::remove_file(&self.beside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_not_there() {
        let home = std::env::temp_dir().join(format!("ashlar-partial-{}", std::process::id()));
        std::fs::create_dir_all(&home).expect("room");
        let path = home.join("file");
        let there = || std::fs::read_dir(&home).expect("it was made").count();

        let mut partial = Partial::buffered(&path).expect("room");
        partial.write_all(b"half").expect("room");
        drop(partial);
        assert_eq!(there(), 0);

        let mut partial = Partial::buffered(&path).expect("room");
        partial.write_all(b"whole").expect("room");
        assert!(!path.exists());
        Partial::finish_buffered(partial).expect("room");
        assert_eq!((std::fs::read(&path).expect("it is there").as_slice(), there()), (&b"whole"[..], 1));

        let error = Partial::create(&home.join("no/where")).err().expect("there is no such directory");
        assert!(error.to_string().contains("no/where"), "{error}");
        std::fs::remove_dir_all(&home).expect("it was made");
    }
}
