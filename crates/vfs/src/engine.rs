//! Which engine: every command that makes a file system of ours takes its name.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// An engine of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Inodes and contents by number.
    #[default]
    Files,
    /// Everything in the order of paths, for trees of many small files. Experimental; see docs/betr.md.
    Betr,
}

impl Engine {
    /// All engines.
    pub const ALL: [Engine; 2] = [Engine::Files, Engine::Betr];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Files => "files",
            Engine::Betr => "betr",
        }
    }

    /// What a file system of it is called among others: `ashlar`, or `ashlar-` and the engine's name.
    pub fn system(self) -> &'static str {
        match self {
            Engine::Files => "ashlar",
            Engine::Betr => "ashlar-betr",
        }
    }

    /// The engine of a file system that is called so among others.
    pub fn of_system(name: &str) -> Option<Engine> {
        Engine::ALL.into_iter().find(|engine| engine.system() == name)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Engine {
    type Err = String;
    fn from_str(text: &str) -> Result<Engine, String> {
        let found = Engine::ALL.into_iter().find(|engine| engine.name() == text);
        found.ok_or_else(|| {
            let names = Engine::ALL.map(Engine::name).join(" and ");
            format!("there is no engine {text:?}; there are {names}")
        })
    }
}
