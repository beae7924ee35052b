//! Paths as records have them: absolute, without `.`, `..` and doubled slashes. Symbolic links are not followed, so that `..`
//! after one is what the text says, not what the kernel did.

/// Longest path in a record, bytes: as long as the kernel takes one, and files of records have lines for.
pub const LEN_MAX: usize = 4096;

/// `text` as it is meant in `base`, an absolute path.
pub fn join(base: &str, text: &str) -> String {
    let base = if text.starts_with('/') { "" } else { base };
    let mut path = String::with_capacity(base.len() + text.len() + 1);
    for part in base.split('/').chain(text.split('/')) {
        match part {
            "" | "." => {}
            ".." => path.truncate(path.rfind('/').unwrap_or(0)),
            name => {
                path.push('/');
                path.push_str(name);
            }
        }
    }
    if path.is_empty() { "/".into() } else { path }
}

/// Whether `path` is `directory` or in it. Both as [`join`] makes them.
pub fn is_below(path: &str, directory: &str) -> bool {
    match path.strip_prefix(directory) {
        Some(rest) => rest.is_empty() || rest.starts_with('/') || directory == "/",
        None => false,
    }
}

/// Whether a path is in a file system that holds no files of anybody.
pub fn is_virtual(path: &str) -> bool {
    let below = |directory| is_below(path, directory);
    below("/proc") || below("/sys") || below("/dev") && !below("/dev/shm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_absolute_and_normal() {
        for (base, text, expected) in [
            ("/a/b", "c", "/a/b/c"),
            ("/a/b", "../c/./d//e/", "/a/c/d/e"),
            ("/a", "/x/../y", "/y"),
            ("/a", "../../..", "/"),
            ("/", "a", "/a"),
            ("/a", ".", "/a"),
        ] {
            assert_eq!(join(base, text), expected, "{base} {text}");
        }
        assert!(is_below("/a/b", "/a") && is_below("/a", "/a") && is_below("/a", "/"));
        assert!(!is_below("/ab", "/a") && !is_below("/", "/a"));
        assert!(
            is_virtual("/proc/1/fd") && is_virtual("/dev/null") && !is_virtual("/dev/shm/a") && !is_virtual("/devil")
        );
    }
}
