//! What is printed: text for people, or one JSON document.

use ashlar_block::Kind;
use ashlar_env::say;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Something went wrong; the text says what, where and how to mend it.
#[derive(Debug)]
pub struct Failure {
    message: String,
    code: u8,
    /// Stored data are damaged.
    damage: bool,
}

impl Failure {
    /// A failure that ends the command with exit code 1.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), code: 1, damage: false }
    }
    /// The same with another exit code.
    pub fn with_code(self, code: u8) -> Failure {
        Failure { code, ..self }
    }
    /// The same with what to do about it, if stored data are damaged.
    pub fn if_damaged(mut self, help: &str) -> Failure {
        if self.damage {
            self.message.push_str(help);
        }
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<ashlar_block::Error> for Failure {
    fn from(error: ashlar_block::Error) -> Failure {
        Failure { damage: error.kind() == Kind::Corrupt, ..Failure::new(error.to_string()) }
    }
}
impl From<ashlar_vfs::Error> for Failure {
    fn from(error: ashlar_vfs::Error) -> Failure {
        error.cause.map_or_else(|| Failure::new(error.errno.to_string()), |cause| Failure::from(*cause))
    }
}

/// The way to print.
pub struct Output {
    pub json: bool,
    schema: bool,
    /// Something did not reach standard output.
    lost: AtomicBool,
}

#[derive(Serialize)]
struct ErrorDocument<'a> {
    error: &'a str,
}

impl Output {
    pub fn new(json: bool, schema: bool) -> Output {
        Output { json, schema, lost: AtomicBool::new(false) }
    }

    /// Whether nothing is to be done but to print a schema.
    pub fn wants_schema(&self) -> bool {
        self.schema
    }

    /// Prints the schema of `T` if that is what was asked for.
    pub fn schema<T: JsonSchema>(&self) -> Option<ExitCode> {
        self.schema.then(|| {
            self.put(&document(&schemars::schema_for!(T)));
            ExitCode::SUCCESS
        })
    }

    /// Refuses to tell the schema of a command that prints no document.
    pub fn no_document(&self) -> Result<(), Failure> {
        match self.schema {
            true => Err(Failure::new("this command prints no JSON document, so there is no schema")),
            false => Ok(()),
        }
    }

    /// Prints a result.
    pub fn print<T: Serialize + fmt::Display>(&self, value: &T) {
        self.put(&if self.json { document(value) } else { value.to_string() });
    }

    /// Says something to people on standard error.
    pub fn say(&self, text: impl fmt::Display) {
        if !self.json {
            say::error(text);
        }
    }

    /// Prints a failure and gives the exit code.
    pub fn fail(&self, failure: &Failure) -> ExitCode {
        if self.json {
            self.put(&document(&ErrorDocument { error: &failure.message }));
        } else {
            say::error(format_args!("ashlar: {failure}"));
        }
        ExitCode::from(failure.code)
    }

    /// Writes to standard output. Who reads it may stop early, as `head` does; other failures are told, and decide how the program
    /// ends: see [`Output::ended`].
    pub fn put(&self, text: &str) {
        let mut output = std::io::stdout().lock();
        if let Err(error) = output.write_all(text.as_bytes()).and_then(|()| output.flush())
            && error.kind() != std::io::ErrorKind::BrokenPipe
        {
            say::error(format_args!("ashlar: cannot write to standard output: {error}"));
            self.lost.store(true, Relaxed);
        }
    }

    /// The exit code of a command that ended with `code`: an answer that nobody got is no success.
    pub fn ended(&self, code: ExitCode) -> ExitCode {
        if code == ExitCode::SUCCESS && self.lost.load(Relaxed) { ExitCode::from(2) } else { code }
    }
}

fn document<T: Serialize>(value: &T) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}
