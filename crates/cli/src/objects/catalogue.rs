//! The list of buckets: `buckets.toml` in the pool's directory.

use super::engines::{Spec, engine};
use super::ground::Ground;
use crate::arguments::DeviceArgument;
use crate::device_files::DeviceFiles;
use crate::list::ListFile;
use crate::output::Failure;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Buckets by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    #[serde(default)]
    pub bucket: BTreeMap<String, Spec>,
}

/// Reads the text of `buckets.toml`.
pub fn parse(text: &str) -> Result<Catalogue, String> {
    let catalogue: Catalogue = toml::from_str(text).map_err(|error| error.to_string())?;
    match catalogue.bucket.keys().find(|name| !ashlar_s3::is_bucket_name(name)) {
        Some(name) => Err(format!("{name:?} is no name of a bucket")),
        None => Ok(catalogue),
    }
}

/// The file.
const LIST: ListFile<Catalogue> = ListFile { name: "buckets", parse };

/// Reads the list; without a file it is empty.
pub fn read(directory: &Path) -> Result<Catalogue, Failure> {
    LIST.read(directory)
}

/// What a bucket is.
pub fn find(directory: &Path, bucket: &str) -> Result<Spec, Failure> {
    read(directory)?.bucket.remove(bucket).ok_or_else(|| missing(bucket))
}

pub fn missing(bucket: &str) -> Failure {
    Failure::new(format!("there is no bucket {bucket:?}; `ashlar bucket list` names all"))
}

/// Why a bucket cannot be made.
pub enum Refusal {
    Exists,
    Failed(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        Refusal::Failed(failure)
    }
}

/// Makes a bucket: first the store, then the entry, so that what is listed is there.
pub async fn create(
    ground: &Ground,
    bucket: &str,
    kind: &str,
    (device, staging): (Option<DeviceArgument>, Option<DeviceArgument>),
    force: bool,
) -> Result<(), Refusal> {
    if !ashlar_s3::is_bucket_name(bucket) {
        let help = "3 to 63 lower-case letters, digits, '.' and '-', with a letter or digit at both ends";
        return Err(Failure::new(format!("{bucket:?} is no name of a bucket: {help}")).into());
    }
    let engine = engine(kind)?;
    for (option, given, takes) in
        [("--device", &device, engine.takes_device()), ("--staging", &staging, engine.takes_staging())]
    {
        match (given, takes) {
            (None, true) => return Err(Failure::new(format!("the engine {kind} needs {option} PATH")).into()),
            (Some(_), false) => return Err(Failure::new(format!("the engine {kind} takes no {option}")).into()),
            _ => {}
        }
    }
    if read(&ground.directory)?.bucket.contains_key(bucket) {
        return Err(Refusal::Exists);
    }
    let mut files = DeviceFiles::default();
    let mut file = |device: Option<DeviceArgument>| device.as_ref().map(|device| files.path(device)).transpose();
    let (device, staging) = (file(device)?, file(staging)?);
    let spec = Spec { engine: kind.into(), created: ground.env.wall().as_secs(), device, staging };
    engine.create(ground, bucket, &spec, force).await?;
    files.keep();
    let (directory, name) = (ground.directory.clone(), bucket.to_string());
    let entered = ground
        .env
        .unblock(move || LIST.change(&directory, |catalogue| Ok(catalogue.bucket.insert(name, spec).is_none())));
    if entered.await? { Ok(()) } else { Err(Refusal::Exists) }
}

/// Destroys a bucket and all that is in it: first the entry, so that what is listed is there.
pub async fn destroy(ground: &Ground, bucket: &str) -> Result<(), Failure> {
    let (directory, name) = (ground.directory.clone(), bucket.to_string());
    let spec = ground.env.unblock(move || {
        LIST.change(&directory, |catalogue| catalogue.bucket.remove(&name).ok_or_else(|| missing(&name)))
    });
    let spec = spec.await?;
    engine(&spec.engine)?.destroy(ground, bucket, &spec).await
}

#[cfg(test)]
mod tests {
    use super::{Catalogue, Spec, parse};

    #[test]
    fn lists_of_buckets() {
        let spec = Spec { engine: "pool".into(), created: 7, device: Some("/dev/sdb".into()), staging: None };
        let catalogue = Catalogue { bucket: [("photos".to_string(), spec)].into() };
        assert_eq!(parse(&toml::to_string_pretty(&catalogue).expect("text")), Ok(catalogue));
        assert_eq!(parse(""), Ok(Catalogue::default()));
        for wrong in [
            "[bucket.photos]\nengine = 1",
            "[bucket.photos]\nengine = 'pool'\ncreated = 1\nx = 2",
            "[x]",
            "[bucket.'a/b']\nengine = 'pool'\ncreated = 1",
        ] {
            parse(wrong).expect_err(wrong);
        }
    }
}
