//! Who may come in: access keys and their secrets, from a file.

use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3Result, s3_error};
use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Longest key or secret, in bytes.
const KEY_LEN_MAX: usize = 128;

/// Access keys and their secrets.
#[derive(Clone, Default)]
pub struct Credentials(BTreeMap<String, SecretKey>);

impl fmt::Debug for Credentials {
    /// Secrets are not printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Credentials {
    /// One key.
    pub fn one(access_key: &str, secret: &str) -> Credentials {
        Credentials([(access_key.to_string(), SecretKey::from(secret))].into())
    }

    /// Whether there is no key at all: then nobody has to sign.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a file that others cannot read; see [`Credentials::parse`].
    ///
    /// # Errors
    /// What is wrong with the file, and how to mend it.
    pub fn load(path: &Path) -> Result<Credentials, String> {
        let fail = |error: std::io::Error| format!("{}: {error}", path.display());
        let mode = std::fs::metadata(path).map_err(fail)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(format!("{}: others can read these secrets: chmod 600 {0}", path.display()));
        }
        let text = std::fs::read_to_string(path).map_err(fail)?;
        Credentials::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Reads lines `ACCESS_KEY SECRET`; empty ones and those that begin with `#` are passed over.
    ///
    /// # Errors
    /// The line that is none, and what it should be.
    pub fn parse(text: &str) -> Result<Credentials, String> {
        let mut keys = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let mut words = line.split_whitespace();
            let Some(key) = words.next().filter(|word| !word.starts_with('#')) else { continue };
            let plain = |word: &&str| word.len() <= KEY_LEN_MAX && word.bytes().all(|byte| byte.is_ascii_graphic());
            let key = Some(key).filter(plain).filter(|key| !key.contains([',', '/', '=']));
            let (Some(key), Some(secret), None) = (key, words.next().filter(plain), words.next()) else {
                let help = "write an access key, a space and its secret; the key without ',', '/' and '='";
                return Err(format!("line {number} is none: {help}, each of up to {KEY_LEN_MAX} bytes of ASCII"));
            };
            if keys.insert(key.to_string(), SecretKey::from(secret)).is_some() {
                return Err(format!("line {number}: the access key {key} is there twice"));
            }
        }
        if keys.is_empty() {
            return Err("there is no key in it: write a line ACCESS_KEY SECRET".into());
        }
        Ok(Credentials(keys))
    }
}

#[async_trait::async_trait]
impl S3Auth for Credentials {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let unknown = || {
            let help = if self.is_empty() { "; this server has no credentials: send requests unsigned" } else { "" };
            s3_error!(InvalidAccessKeyId, "this server does not know the access key{}", help)
        };
        self.0.get(access_key).cloned().ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::Credentials;

    #[test]
    fn lines_of_keys() {
        let read = Credentials::parse("# comment\n\n  AKID secret/with+signs== \nother s\n").expect("two keys");
        assert_eq!(read.0.keys().collect::<Vec<_>>(), ["AKID", "other"]);
        assert_eq!(format!("{read:?}"), r#"{"AKID", "other"}"#);
        for wrong in ["", "# only", "AKID", "a b c", "a/b secret", "a b\na c", &"x".repeat(129), "a \u{7f}"] {
            Credentials::parse(wrong).expect_err(wrong);
        }
    }
}
