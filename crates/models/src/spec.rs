//! Model files: a description in TOML of what a device is, and where each number comes from.

use crate::disk::{Disk, DiskSpec};
use crate::error::{SpecError, law, size};
use crate::flash::{FlashSpec, Hybrid, HybridSpec, PageMapped, SegmentSpec, Segments};
use crate::generic::{Generic, GenericSpec};
use crate::model::Model;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// A model file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// Its name.
    pub name: String,
    /// What it is, in a line.
    #[serde(default)]
    pub what: String,
    /// What is known not to be modelled.
    #[serde(default)]
    pub not_modelled: Vec<String>,
    /// Where each parameter comes from, by its dotted name.
    #[serde(default)]
    pub sources: BTreeMap<String, String>,
    /// The device.
    pub model: Spec,
}

/// A device and its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spec {
    /// A mechanical disk.
    Disk(Box<DiskSpec>),
    /// An SSD with a page map.
    Flash(Box<FlashSpec>),
    /// An SSD of append-once segments.
    Segments(Box<SegmentSpec>),
    /// A memory card with log blocks.
    Hybrid(Box<HybridSpec>),
    /// A device by distributions.
    Generic(Box<GenericSpec>),
}

/// Texts of the presets, by name.
const PRESETS: [&str; 12] = [
    include_str!("../presets/cheetah-15k5.toml"),
    include_str!("../presets/wd-re3.toml"),
    include_str!("../presets/maxtor-d740x.toml"),
    include_str!("../presets/exos-x20.toml"),
    include_str!("../presets/fujitsu-m2694.toml"),
    include_str!("../presets/ssd-tlc.toml"),
    include_str!("../presets/amf-page.toml"),
    include_str!("../presets/amf-segments.toml"),
    include_str!("../presets/usb-generic.toml"),
    include_str!("../presets/usb-house.toml"),
    include_str!("../presets/usb-memorex.toml"),
    include_str!("../presets/network-disk.toml"),
];

impl ModelFile {
    /// Reads a model file, and checks that such a device can be.
    pub fn parse(text: &str) -> Result<ModelFile, SpecError> {
        let file: ModelFile = toml::from_str(text).map_err(|error| SpecError::Form(error.to_string()))?;
        file.build(0)?;
        Ok(file)
    }

    /// The preset of a name.
    pub fn preset(name: &str) -> Result<ModelFile, SpecError> {
        let presets = presets();
        let known = presets.iter().map(|file| file.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = presets.iter().find(|file| file.name == name).cloned();
        law(found.is_some(), "model", name, &format!("there is no such preset; there are: {known}"))?;
        found.ok_or_else(|| SpecError::Form(String::new()))
    }

    /// A preset by its name, or a model file by a path that ends in `.toml`; a relative path begins at `base`.
    pub fn find(model: &str, base: &Path) -> Result<ModelFile, SpecError> {
        if !model.ends_with(".toml") {
            return ModelFile::preset(model);
        }
        let path = base.join(model);
        let within = |error: String| SpecError::Form(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|error| within(error.to_string()))?;
        ModelFile::parse(&text).map_err(|error| within(error.to_string()))
    }

    /// What kind of device it is, as the model file says it.
    pub fn kind(&self) -> &'static str {
        match &self.model {
            Spec::Disk(_) => "disk",
            Spec::Flash(_) => "flash",
            Spec::Segments(_) => "segments",
            Spec::Hybrid(_) => "hybrid",
            Spec::Generic(_) => "generic",
        }
    }

    /// Bytes of a page of its flash, if it has any.
    pub fn page_bytes(&self) -> Option<u64> {
        let nand = match &self.model {
            Spec::Flash(spec) => &spec.nand,
            Spec::Segments(spec) => &spec.nand,
            Spec::Hybrid(spec) => &spec.nand,
            Spec::Disk(_) | Spec::Generic(_) => return None,
        };
        size("nand.page", &nand.page).ok()
    }

    /// Every parameter by its dotted name, with its value.
    pub fn parameters(&self) -> Vec<(String, String)> {
        let mut parameters = Vec::new();
        let model = toml::Value::try_from(&self.model).ok();
        if let Some(toml::Value::Table(device)) = model.and_then(|model| model.get(self.kind()).cloned()) {
            flatten(&device, "", &mut parameters);
        }
        parameters
    }

    /// Whether such a device has a state that a restart must not change: flash wears, and has pages somewhere.
    pub fn wears(&self) -> bool {
        matches!(self.model, Spec::Flash(_) | Spec::Segments(_) | Spec::Hybrid(_))
    }

    /// The device, as the model file has it; so two files with the same description make the same devices.
    pub fn description(&self) -> String {
        toml::to_string(&self.model).unwrap_or_default()
    }

    /// Makes a device. The seed decides what differs from one specimen to the next.
    pub fn build(&self, seed: u64) -> Result<Box<dyn Model>, SpecError> {
        Ok(match &self.model {
            Spec::Disk(spec) => Box::new(Disk::new(spec)?),
            Spec::Flash(spec) => Box::new(PageMapped::new(spec, seed)?),
            Spec::Segments(spec) => Box::new(Segments::new(spec, seed)?),
            Spec::Hybrid(spec) => Box::new(Hybrid::new(spec, seed)?),
            Spec::Generic(spec) => Box::new(Generic::new(spec, seed)?),
        })
    }
}

fn flatten(table: &toml::Table, prefix: &str, parameters: &mut Vec<(String, String)>) {
    for (key, value) in table {
        match value {
            toml::Value::Table(table) => flatten(table, &format!("{prefix}{key}."), parameters),
            toml::Value::String(text) => parameters.push((format!("{prefix}{key}"), text.clone())),
            value => parameters.push((format!("{prefix}{key}"), value.to_string())),
        }
    }
}

/// Every preset. They are not built here: some are large, and tests do it.
pub fn presets() -> Vec<ModelFile> {
    PRESETS.iter().map(|text| toml::from_str(text).unwrap_or_else(|error| panic!("preset: {error}"))).collect()
}
