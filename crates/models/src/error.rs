//! What can be wrong with the description of a model.

/// A description that is not a model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// Not TOML, or not of this form.
    #[error("{0}")]
    Form(String),
    /// A value that no device can have.
    #[error("{name} = {value}: {law}")]
    Impossible {
        /// The parameter.
        name: String,
        /// Its value.
        value: String,
        /// The law that it breaks, and so how to mend it.
        law: String,
    },
}

/// Refuses `value` of the parameter `name` unless the law holds.
pub(crate) fn law(holds: bool, name: &str, value: impl std::fmt::Display, law: &str) -> Result<(), SpecError> {
    if holds {
        return Ok(());
    }
    Err(SpecError::Impossible { name: name.into(), value: value.to_string(), law: law.into() })
}

/// A time that was given as a decimal number of a larger unit, in nanoseconds.
pub(crate) fn time_ns(name: &str, value: f64, unit_ns: f64) -> Result<u64, SpecError> {
    law(value.is_finite() && value >= 0.0, name, value, "a time is a finite number and not negative")?;
    law(value * unit_ns <= 1e15, name, value, "a time of a device is below 11 days")?;
    Ok((value * unit_ns).round() as u64)
}

/// A size as people write it.
pub(crate) fn size(name: &str, text: &str) -> Result<u64, SpecError> {
    let parsed: Result<ashlar_units::Bytes, _> = text.parse();
    parsed.map(|bytes| bytes.0).map_err(|error| SpecError::Impossible {
        name: name.into(),
        value: format!("{text:?}"),
        law: error.to_string(),
    })
}
