//! Where the ledger of a user is.

use crate::Error;
use std::ffi::OsString;
use std::path::PathBuf;

/// `$ASHLAR_LEDGER`, else in `$XDG_STATE_HOME`, else in `$HOME/.local/state`. Directories must be absolute, as the XDG
/// specification asks; what is not counts as not set.
pub fn default_path(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, Error> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = set("ASHLAR_LEDGER") {
        return Ok(path);
    }
    let absolute = |name: &str| set(name).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.ok_or_else(|| Error::Place("neither XDG_STATE_HOME nor HOME is an absolute path".into()))?;
    Ok(state.join("ashlar/ledger.jsonl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(set: &[(&str, &str)]) -> Option<PathBuf> {
        default_path(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())).ok()
    }

    #[test]
    fn the_environment_decides_in_order() {
        let all = [("ASHLAR_LEDGER", "x"), ("XDG_STATE_HOME", "/s"), ("HOME", "/h")];
        assert_eq!(place(&all), Some("x".into()));
        assert_eq!(place(&all[1..]), Some("/s/ashlar/ledger.jsonl".into()));
        assert_eq!(place(&all[2..]), Some("/h/.local/state/ashlar/ledger.jsonl".into()));
        assert_eq!(place(&[("XDG_STATE_HOME", "relative"), ("HOME", "/h")]), place(&all[2..]));
        assert_eq!(place(&[("ASHLAR_LEDGER", "")]), None);
    }
}
