//! `ashlar layers` and `ashlar explain`: help that comes from the code.

use crate::arguments::Arguments;
use crate::output::{Failure, Output};
use ashlar_layers::LayerInfo;
use ashlar_prove::EXPLORATIONS;
use clap::CommandFactory;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;

#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Layers(Vec<LayerInfo>);

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layers(layers) = self;
        for layer in layers {
            writeln!(f, "{:<10}{}", layer.name, layer.what)?;
            for parameter in layer.parameters.iter().filter(|_| layers.len() == 1) {
                let needed = if parameter.required { "required" } else { "optional" };
                writeln!(f, "    {:<10}{} ({}, {needed})", parameter.name, parameter.what, parameter.kind)?;
            }
        }
        Ok(())
    }
}

/// Something explained.
#[derive(Serialize, JsonSchema)]
struct Explanation {
    /// Its name.
    name: String,
    /// The explanation.
    text: String,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text.trim_end())
    }
}

/// `ashlar layers [NAME]`.
pub fn layers(name: Option<&str>, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Layers>() {
        return Ok(code);
    }
    let mut all = ashlar_layers::layers();
    if let Some(name) = name {
        all.retain(|layer| layer.name == name);
        if all.is_empty() {
            return Err(Failure::new(format!("there is no layer {name:?}; `ashlar layers` lists them")));
        }
    }
    output.print(&Layers(all));
    Ok(ExitCode::SUCCESS)
}

/// `ashlar explain NAME`: a layer, a rule, a fault, an estimator, or a command.
pub fn explain(name: &str, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Explanation>() {
        return Ok(code);
    }
    let layer = ashlar_layers::layers().into_iter().find(|layer| layer.name == name);
    let rules = rules(name);
    let faults = ashlar_faults::KINDS.iter().filter(|kind| name == "faults" || kind.name == name);
    let faults: String = faults.map(|kind| format!("{}\n    {}\n", kind.what, kind.usage())).collect();
    let estimator = crate::plan::estimators().find(|estimator| estimator.name == name);
    let text = match layer {
        _ if !faults.is_empty() => faults,
        _ if name == "betr" => crate::engine::ABOUT_BETR.into(),
        _ if estimator.is_some() => estimator.map(crate::plan::about).unwrap_or_default(),
        Some(layer) => Layers(vec![layer]).to_string(),
        None if !rules.is_empty() => rules,
        None => {
            let unknown = || {
                Failure::new(format!(
                    "{name:?} is no layer, rule, fault, estimator or command; see `ashlar layers`, `ashlar prove pool --rules`, `ashlar plan estimate --help` and `ashlar help`"
                ))
            };
            command(name).ok_or_else(unknown)?
        }
    };
    output.print(&Explanation { name: name.into(), text });
    Ok(ExitCode::SUCCESS)
}

/// The help of a command.
fn command(name: &str) -> Option<String> {
    let mut all = Arguments::command();
    // So that each knows what it is called in full.
    all.build();
    all.find_subcommand_mut(name).map(|found| found.render_long_help().to_string())
}

/// The rules of this name, each by the first exploration that has it: what stands on a pool has the pool's, too.
fn rules(name: &str) -> String {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for exploration in &EXPLORATIONS {
        for (_, what) in exploration.rules().into_iter().filter(|(known, _)| *known == name) {
            if !found.iter().any(|(_, known)| *known == what) {
                found.push((exploration.name, what));
            }
        }
    }
    let line = |(of, what): (&str, &str)| {
        format!(
            "The rule {name} of {of}: {what}.\n`ashlar prove {of} --without {name}` breaks it on purpose, and must find the \
             damage.\n"
        )
    };
    found.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_explained_as_it_is_called() {
        assert!(command("up").expect("a command").contains("Usage: ashlar up [OPTIONS]"));
        assert!(command("pool create").is_none());
    }
}
